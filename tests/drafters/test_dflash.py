"""DFlash against the published reference."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from spinejax.drafters.backbone import Place
from spinejax.verify.sampling import Sampling, Stream, round_keys
from tests.drafters.runs import context_of, flash_hidden, logits_of, place_of

ATOL = 5e-5


def test_two_rounds_with_a_cached_context(flash):
  cfg, params, expected = flash.cfg, flash.params, flash.recorded('serve')
  cache = flash.cache()
  for i in (1, 2):
    want = {
      k.removeprefix(f'round{i}.'): v
      for k, v in expected.items()
      if k.startswith(f'round{i}.')
    }
    start, anchor_B = int(want['start_position']), want['anchor_id']
    cache = flash.extend(cache, want['pending_features'])
    assert cache.length_B[0] == start
    np.testing.assert_allclose(
      np.stack(cache.k)[:, 0, :, :start], want['draft_cache_keys'], atol=ATOL
    )
    np.testing.assert_allclose(
      np.stack(cache.v)[:, 0, :, :start], want['draft_cache_values'], atol=ATOL
    )
    np.testing.assert_array_equal(
      [[*anchor_B, *[cfg.mask_id] * cfg.slots]], want['block_ids']
    )
    hidden = flash_hidden(
      cfg,
      params,
      flash.embed_VD,
      anchor_B[:, None],
      context_of(cache),
      place_of(cache, start),
    )
    np.testing.assert_allclose(hidden[:, 0], want['hidden_states'], atol=ATOL)
    logits = logits_of(cfg, hidden[:, 0, 1:], flash.head_VD)
    np.testing.assert_allclose(logits, want['logits'], atol=ATOL)
    proposal = flash.propose(cache, anchor_B, start)
    np.testing.assert_array_equal(proposal.tokens_BS, want['proposals'])
  assert (
    expected['round2.start_position']
    == expected['round1.start_position'] + expected['accepted_after_round1'] + 1
  )


@pytest.mark.parametrize(
  'mode, causal', [('unset', None), ('false', False), ('true', True)]
)
def test_sliding_layers_with_every_spelling_of_is_causal(sliding, mode, causal):
  expected = sliding.recorded('serve')
  assert sliding.cfg.causal is None
  assert sliding.cfg.windows == (None, 5, 5)
  cfg = dataclasses.replace(sliding.cfg, causal=causal)
  cache = sliding.cache(expected['context_features'])
  hidden = flash_hidden(
    cfg,
    sliding.params,
    sliding.embed_VD,
    expected['block_ids'][:, :1],
    context_of(cache),
    place_of(cache, int(expected['start_position'])),
  )[:, 0]
  want = {k: expected[f'is_causal_{mode}.{k}'] for k in (
    'hidden_states', 'logits')}  # fmt: skip
  np.testing.assert_allclose(hidden, want['hidden_states'], atol=ATOL)
  np.testing.assert_allclose(
    logits_of(cfg, hidden[:, 1:], sliding.head_VD), want['logits'], atol=ATOL
  )


def test_many_anchors_of_a_training_batch(flash):
  expected = flash.recorded('train')
  anchors_BA = jnp.asarray(expected['anchors'])
  cache = flash.cache(expected['context_features'])
  hidden = flash_hidden(
    flash.cfg,
    flash.params,
    flash.embed_VD,
    expected['block_ids'][..., 0],
    context_of(cache),
    Place(anchors_BA, anchors_BA),
  )
  kept = expected['block_keep'].astype(bool)
  np.testing.assert_allclose(
    hidden[kept], expected['hidden_states'][kept], atol=ATOL
  )
  np.testing.assert_allclose(
    logits_of(flash.cfg, hidden[kept], flash.head_VD),
    expected['logits'][kept],
    atol=ATOL,
  )


def test_samples_with_the_law_that_it_states(flash):
  B, expected = 1000, flash.recorded('serve')
  features = np.repeat(expected['round1.pending_features'], B, axis=0)
  anchor_B = np.repeat(expected['round1.anchor_id'], B)
  keys_B = round_keys(
    jnp.arange(B, dtype=jnp.uint32), jnp.zeros(B, int), Stream.DRAFT
  )
  sampling = dataclasses.replace(
    Sampling.make(B, 0.7), temperature_B=jnp.full(B, 0.7).at[0].set(0)
  )
  found = flash.propose(flash.cache(features), anchor_B, 11, sampling, keys_B)
  logits_SV = expected['round1.logits'][0].astype(np.float64) / 0.7
  probs_SV = np.exp(logits_SV - logits_SV.max(-1, keepdims=True))
  probs_SV /= probs_SV.sum(-1, keepdims=True)
  np.testing.assert_allclose(found.law.probs_BSV[1], probs_SV, atol=1e-5)
  # The request of temperature 0 is greedy, and says so.
  np.testing.assert_array_equal(
    found.tokens_BS[0], expected['round1.proposals'][0]
  )
  np.testing.assert_array_equal(
    np.argmax(found.law.probs_BSV[0], -1), found.tokens_BS[0]
  )
  assert np.all(np.max(found.law.probs_BSV[0], -1) == 1)
  tokens_BS = np.asarray(found.tokens_BS[1:])
  for j in range(flash.cfg.slots):
    likely = np.argsort(-probs_SV[j])[:8]
    seen = [(tokens_BS[:, j] == t).sum() for t in likely]
    seen = np.array([*seen, B - 1 - sum(seen)])
    mass = np.append(probs_SV[j][likely], 1 - probs_SV[j][likely].sum())
    fit = stats.chisquare(seen, mass / mass.sum() * (B - 1))
    assert fit.pvalue > 1e-3
