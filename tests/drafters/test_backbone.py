"""The shared backbone against its formulas, block by block."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone
from spinejax.drafters.backbone import Place, tap_ids
from spinejax.errors import InputError
from spinejax.verify.sampling import Sampling, Stream, round_keys
from tests.drafters import reference
from tests.drafters.runs import context_of, flash_hidden, place_of

RNG = np.random.default_rng(0)
FEATURES_BTP = RNG.normal(size=(2, 20, 192)).astype(np.float32)


def float64(run):
  tensors = run.recorded('model') | {'head': np.asarray(run.head_VD)}
  return {k: v.astype(np.float64) for k, v in tensors.items()}


@pytest.mark.parametrize(
  'layers, expected',
  [
    (16, (1, 4, 7, 10, 13)),
    (28, (1, 7, 13, 19, 25)),
    (30, (1, 8, 14, 20, 27)),  # 7.5 and 20.5 round to even
    (36, (1, 9, 17, 25, 33)),
    (40, (1, 10, 19, 28, 37)),
    (64, (1, 16, 31, 46, 61)),
  ],
)
def test_tap_ids_are_the_published_ones(layers, expected):
  assert tap_ids(layers, 5) == expected
  assert tap_ids(layers, 1) == (layers // 2,)


def test_a_target_too_shallow_for_the_taps(refused):
  assert tap_ids(8, 5) == (1, 2, 3, 4, 5)
  for layers, taps, least in ((7, 5, 8), (4, 2, 5), (2, 1, 3)):
    with refused(
      f'target of {layers} layers has too few for {taps} taps, expected at '
      f'least {least}'
    ):
      tap_ids(layers, taps)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'norm_eps': 0.0}, 'norm_eps = 0.0, expected a positive, finite number'),
    ({'rope_base': np.inf}, 'rope_base = inf, expected a positive, finite...'),
    ({'rope_base': None}, 'rope_base = None, expected a positive, finite...'),
    ({'softcap': 0.0}, 'softcap = 0.0, expected a positive, finite number'),
    ({'head_dim': 15}, 'head_dim = 15, expected an even number'),
    (
      {'output_multiplier': 0.0},
      'output_multiplier = 0.0, expected finite and not zero',
    ),
    ({'embedding_scale': np.nan}, 'embedding_scale = nan, expected finite...'),
    ({'kv_heads': 0}, 'kv_heads = 0, expected an integer >= 1'),
    ({'block': 2.5}, 'block = 2.5, expected an integer >= 1'),
    ({'mask_id': -1}, 'mask_id = -1, expected an integer >= 0'),
    ({'message': 0}, 'message = 0, expected an integer >= 1'),
    ({'rank': '8'}, "rank = '8', expected an integer >= 1"),
    ({'windows': (None, 0, 3)}, 'windows = (None, 0, 3), expected integers...'),
    ({'taps': (1, 'a')}, "taps = (1, 'a'), expected ascending layer ids"),
  ],
)
def test_configs_without_meaning_are_refused(spine, refused, change, message):
  with refused(message):
    dataclasses.replace(spine.cfg, **change)


@pytest.mark.parametrize(
  'causal, windows',
  [
    (None, None),
    (True, None),
    (None, (None, 4, 9)),
    (False, (None, 4, 9)),
    (True, (None, 4, 9)),
  ],
)
def test_many_blocks_at_once_are_masked_as_each_alone(flash, causal, windows):
  cfg = dataclasses.replace(flash.cfg, causal=causal, windows=windows)
  w = float64(flash)
  start_BA = np.array([[2, 9, 17], [0, 11, 20]])
  visible_BA = np.array([[2, 9, 17], [0, 8, 20]])  # one lags behind
  anchor_BA = np.array([[5, 6, 7], [8, 9, 10]])
  cache = flash.cache(FEATURES_BTP)
  found = flash_hidden(
    cfg,
    flash.params,
    flash.embed_VD,
    jnp.asarray(anchor_BA),
    context_of(cache),
    Place(jnp.asarray(start_BA), jnp.asarray(visible_BA)),
  )
  embed_VD = np.asarray(flash.embed_VD, np.float64)
  for b, a in np.ndindex(start_BA.shape):
    expected = reference.hidden(
      w,
      cfg,
      embed_VD,
      FEATURES_BTP[b].astype(np.float64),
      anchor_BA[b, a],
      start_BA[b, a],
      visible_BA[b, a],
    )
    np.testing.assert_allclose(found[b, a], expected, atol=5e-5)


def test_context_taken_in_pieces_is_context_taken_at_once(flash):
  features_BTP = FEATURES_BTP[:, :11]
  whole = flash.cache(features_BTP)
  cache = flash.cache(FEATURES_BTP[:, :0])
  for rows in np.split(features_BTP, [3, 4], axis=1):
    cache = flash.extend(cache, rows, padding=1e3)
  np.testing.assert_array_equal(cache.length_B, [11, 11])
  for pieces, once in zip(cache.k + cache.v, whole.k + whole.v, strict=True):
    np.testing.assert_allclose(pieces[:, :, :11], once[:, :, :11], atol=1e-5)


def test_requests_of_a_batch_take_in_their_own_counts(flash):
  cache = flash.cache(FEATURES_BTP[:, :0])
  extend = jax.jit(backbone.extend, static_argnums=0)
  for count_B in ([4, 7], [0, 3]):
    cache = extend(
      flash.cfg,
      flash.params,
      cache,
      jnp.asarray(FEATURES_BTP[:, :7]),
      jnp.array(count_B),
    )
  np.testing.assert_array_equal(cache.length_B, [4, 10])
  alone = flash.cache(FEATURES_BTP[:1, :4])
  np.testing.assert_allclose(
    cache.k[1][0, :, :4], alone.k[1][0, :, :4], atol=1e-5
  )
  first_rows = flash.cache(FEATURES_BTP[1:, :7])
  np.testing.assert_allclose(
    cache.v[2][1, :, :7], first_rows.v[2][0, :, :7], atol=1e-5
  )


@pytest.mark.parametrize('name', ['flash', 'spine'])
def test_rows_past_the_watermark_are_never_seen(name, request):
  run = request.getfixturevalue(name)
  clean = run.cache(FEATURES_BTP[:, :9])
  dirty = dataclasses.replace(
    clean,
    k=tuple(k.at[:, :, 9:].set(1e30) for k in clean.k),
    v=tuple(v.at[:, :, 9:].set(-1e30) for v in clean.v),
  )
  for start in (9, 12):
    np.testing.assert_array_equal(
      run.propose(clean, [3, 4], start).tokens_BS,
      run.propose(dirty, [3, 4], start).tokens_BS,
    )


def test_position_comes_from_the_history_not_from_the_draft_cache(flash):
  w, cache = float64(flash), flash.cache(FEATURES_BTP[:1, :9])

  def law(start):
    states = reference.hidden(
      w,
      flash.cfg,
      np.asarray(flash.embed_VD, np.float64),
      FEATURES_BTP[0, :9].astype(np.float64),
      anchor=3,
      start=start,
    )
    logits = states[1:] @ w['head'].T
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)

  keys_B = round_keys(jnp.zeros(1, jnp.uint32), jnp.zeros(1, int), Stream.DRAFT)
  found = flash.propose(cache, [3], 14, Sampling.make(1, 1.0), keys_B)
  np.testing.assert_allclose(found.law.probs_BSV[0], law(14), atol=1e-5)
  assert np.abs(found.law.probs_BSV[0] - law(9)).max() > 1e-2


def test_embedding_scale_and_learned_mask(flash):
  cfg = dataclasses.replace(flash.cfg, embedding_scale=2.5)
  anchor_BA = jnp.array([[3, 4]])
  block = backbone.embed_block(cfg, flash.params, flash.embed_VD, anchor_BA)
  np.testing.assert_allclose(block[0, 1, 0], flash.embed_VD[4] * 2.5)
  np.testing.assert_allclose(block[0, 1, 1], flash.embed_VD[cfg.mask_id] * 2.5)
  mask_D = jnp.arange(cfg.width, dtype=jnp.float32)
  params = dataclasses.replace(flash.params, mask_D=mask_D)
  block = backbone.embed_block(cfg, params, flash.embed_VD, anchor_BA)
  np.testing.assert_allclose(block[0, 0, 0], flash.embed_VD[3] * 2.5)
  np.testing.assert_allclose(block[0, 0, 5], mask_D * 2.5)


def test_logits_are_multiplied_then_capped(flash):
  cfg = dataclasses.replace(flash.cfg, output_multiplier=0.5, softcap=3.0)
  states = RNG.normal(size=(4, 64)).astype(np.float32)
  plain = states @ np.asarray(flash.head_VD).T
  np.testing.assert_allclose(
    backbone.logits_of(cfg, states, flash.head_VD),
    3 * np.tanh(plain / 2 / 3),
    atol=1e-5,
  )


def test_slots_of_a_bidirectional_block_see_later_ones(flash):
  cache = flash.cache(FEATURES_BTP)
  long, short = (
    flash_hidden(
      dataclasses.replace(flash.cfg, block=block),
      flash.params,
      flash.embed_VD,
      jnp.array([[3], [4]]),
      context_of(cache),
      place_of(cache, 20),
    )
    for block in (6, 4)
  )
  assert np.abs(long[:, :, :4] - short).max(-1).min() > 0.01


@pytest.mark.parametrize(
  'change, message',
  [
    ({'block': 1}, 'block = 1 leaves no slot'),
    ({'mask_id': 97}, 'mask_id = 97 is outside the vocabulary of 97'),
    ({'windows': (None, 4)}, 'windows names 2 layers, the drafter has 3'),
    ({'taps': (5, 1, 9)}, r'taps = \(5, 1, 9\), expected ascending'),
    ({'taps': ()}, r'taps = \(\)'),
    ({'kv_heads': 3}, 'heads = 4 is not a multiple of kv_heads = 3'),
  ],
)
def test_config_refuses(flash, change, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(flash.cfg, **change)
