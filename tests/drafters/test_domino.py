"""Domino against the published reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone, domino
from spinejax.target import layers as nn
from tests.drafters.runs import (
  ATOL,
  Run,
  assert_drawn_from,
  context_of,
  flash_hidden,
  hidden_of,
  load_run,
  place_of,
  rounds_of,
  sampled,
  static_jit,
  trained_hidden,
)

RNG = np.random.default_rng(0)


@pytest.fixture(scope='module')
def run() -> Run:
  return load_run('domino-b6')


def in_place(run: Run) -> Run:
  """The same weights in the other slot layout."""
  cfg = dataclasses.replace(run.cfg, anchor_first=False)
  model = dataclasses.replace(run.model, drafter=domino.domino(cfg))
  return dataclasses.replace(run, model=model)


@static_jit
def heads(cfg, params, embed_VD, head_VD, hidden_BASD, before_BAS):
  """Base and corrected logits behind known tokens."""
  base = backbone.logits_of(cfg, hidden_BASD, head_VD)
  z = domino.correction(cfg, params, embed_VD, hidden_BASD, before_BAS)
  return base, base + nn.dense(z, params.up_VE)


def heads_of(run: Run, hidden, before):
  return heads(run.cfg, run.params, run.embed_VD, run.head_VD, hidden, before)


def test_two_rounds_with_a_cached_context(run):
  for want, cache, start in rounds_of(run):
    hidden = hidden_of(run, want, cache, start)
    np.testing.assert_allclose(hidden[:, 0], want['hidden_states'], atol=ATOL)
    proposal = run.propose(cache, want['anchor_id'], start)
    # The reference leaves the last slot unused; here it proposes too.
    tokens_BS = np.asarray(proposal.tokens_BS)
    np.testing.assert_array_equal(tokens_BS[:, :-1], want['proposals'])
    np.testing.assert_array_equal(
      tokens_BS, np.argmax(want['final_logits'], axis=-1)
    )
    before = np.concatenate(
      [want['anchor_id'][:, None], tokens_BS[:, :-1]], axis=1
    )
    base, final = heads_of(run, hidden, before[:, None])
    np.testing.assert_allclose(base[:, 0], want['base_logits'], atol=ATOL)
    np.testing.assert_allclose(final[:, 0], want['final_logits'], atol=ATOL)


def test_many_anchors_of_a_training_batch(run):
  expected = run.recorded('train')
  kept, hidden = trained_hidden(run, run.params.backbone)
  before = expected['predecessor_ids']
  anchor_BA1 = expected['block_ids'][..., :1]
  labels = np.concatenate([anchor_BA1, expected['labels'][..., :-1]], axis=-1)
  np.testing.assert_array_equal(labels[kept], before[kept])
  states = jax.jit(domino.gru_states)(run.params, run.embed_VD, before)
  np.testing.assert_allclose(
    states[kept], expected['gru_states'][kept], atol=ATOL
  )
  base, final = heads_of(run, hidden, before)
  np.testing.assert_allclose(
    base[kept], expected['base_logits'][kept], atol=ATOL
  )
  np.testing.assert_allclose(
    final[kept], expected['final_logits'][kept], atol=ATOL
  )


@pytest.mark.parametrize('prefix', [0, 1, 3])
def test_slots_of_the_prefix_are_not_corrected(run, prefix):
  cfg = dataclasses.replace(run.cfg, pure_draft_prefix_len=prefix)
  hidden = RNG.normal(size=(2, 3, 6, 32)).astype(np.float32)
  before = RNG.integers(0, 97, (2, 3, 6))
  z = domino.correction(cfg, run.params, run.embed_VD, hidden, before)
  assert np.all(z[:, :, :prefix] == 0)
  assert np.all(np.abs(z[:, :, prefix:]).max(-1) > 1e-3)
  # The GRU has read the tokens before them all the same.
  changed = before.copy()
  changed[..., 0] = (before[..., 0] + 1) % 97
  moved = domino.correction(cfg, run.params, run.embed_VD, hidden, changed) - z
  assert np.all(np.abs(moved[:, :, prefix:]).max(-1) > 1e-6)


def test_unshifted_layout_corrects_by_the_states_before_a_slot(run):
  """Slot k = 1 + i proposes the token at its place, with GRU state k - 1."""
  other = in_place(run)
  assert (run.cfg.slots, other.cfg.slots) == (6, 5)
  want, cache, start = next(rounds_of(other))
  p, cfg = other.params, other.cfg
  hidden = np.asarray(hidden_of(other, want, cache, start)[0, 0], np.float64)
  w = {k: np.float64(v) for k, v in run.recorded('model').items()}
  embed, head = (np.float64(x) for x in (run.embed_VD, run.head_VD))

  def sigmoid(x):
    return 1 / (1 + np.exp(-x))

  state, before, chosen = np.zeros(cfg.gru_dim), want['anchor_id'][0], []
  for k in range(1, cfg.block):
    a = np.split(w['prefix_gru.weight_ih_l0'] @ embed[before], 3)
    b = np.split(w['prefix_gru.weight_hh_l0'] @ state, 3)
    r, z = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
    state = (1 - z) * np.tanh(a[2] + r * b[2]) + z * state
    logits = head @ hidden[k]
    if k >= 1 + cfg.pure_draft_prefix_len:
      x = w['embed_proj.0.weight'] @ np.concatenate([hidden[k], state])
      logits += w['embed_proj.2.weight'] @ (x * sigmoid(x))
    before = np.argmax(logits)
    chosen.append(before)
  proposal = other.propose(cache, want['anchor_id'], start)
  np.testing.assert_array_equal(proposal.tokens_BS[0], chosen)
  assert p is run.params


def test_samples_with_the_law_that_it_states(run):
  want, _, start = next(rounds_of(run))
  found = sampled(run, want, start, 0.7, batch=1000)
  greedy = np.argmax(want['final_logits'][0], axis=-1)
  np.testing.assert_array_equal(found.tokens_BS[0], greedy)
  tokens_BS = np.asarray(found.tokens_BS)
  laws = np.asarray(found.law.probs_BSV)
  first = np.exp(want['final_logits'][0, 0].astype(np.float64) / 0.7)
  np.testing.assert_allclose(laws[1, 0], first / first.sum(), atol=1e-5)
  assert_drawn_from(tokens_BS[1:, 0], laws[1, 0])
  # Slot 1 by the token that slot 0 drew.
  common = np.argmax(np.bincount(tokens_BS[1:, 0]))
  same = 1 + np.flatnonzero(tokens_BS[1:, 0] == common)
  assert len(same) > 100
  assert_drawn_from(tokens_BS[same, 1], laws[same[0], 1])
  # Every stated law is that behind the drawn tokens.
  some = slice(1, 21)
  B = len(tokens_BS[some])
  anchor_B = np.repeat(want['anchor_id'], B)
  cache = run.cache(np.repeat(want['pending_features'], B, axis=0))
  hidden = flash_hidden(
    run.cfg, run.params.backbone, run.embed_VD, anchor_B[:, None],
    context_of(cache), place_of(cache, start),
  )  # fmt: skip
  before = np.concatenate([anchor_B[:, None], tokens_BS[some, :-1]], axis=1)
  _, logits = heads_of(run, hidden, before[:, None])
  np.testing.assert_allclose(
    laws[some], jax.nn.softmax(logits[:, 0] / 0.7), atol=1e-5
  )


def test_fresh_weights_correct_little(run):
  params = domino.random_domino(run.cfg, jax.random.key(0))
  shapes = jax.tree.map(jnp.shape, run.params)
  assert jax.tree.map(jnp.shape, params) == shapes
  assert 0.2 < np.abs(params.recurrent_3ZZ).max() <= 0.25
  hidden = RNG.normal(size=(2, 3, 6, 32)).astype(np.float32)
  before = RNG.integers(0, 97, (2, 3, 6))
  fresh = dataclasses.replace(
    run, model=dataclasses.replace(run.model, params=params)
  )
  base, final = heads_of(fresh, hidden, before)
  assert 0 < np.abs(final - base).max() < 0.05


@pytest.mark.parametrize(
  'change, message',
  [
    ({'emb_dim': 0}, 'emb_dim = 0, expected an integer >= 1'),
    ({'gru_dim': 2.0}, 'gru_dim = 2.0, expected an integer >= 1'),
    (
      {'pure_draft_prefix_len': -1},
      'pure_draft_prefix_len = -1, expected an integer >= 0',
    ),
  ],
)
def test_config_refuses(run, refused, change, message):
  with refused(message):
    dataclasses.replace(run.cfg, **change)
