"""DFlash2 against the published reference, and its invariants."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone, dflash2
from spinejax.drafters.transition import predecessors, walk
from spinejax.top import top_k
from spinejax.verify.sampling import Sampling
from tests.drafters.runs import (
  ATOL,
  Run,
  assert_drawn_from,
  context_of,
  flash2_hidden,
  flash_hidden,
  hidden_of,
  load_run,
  logits_of,
  place_of,
  rounds_of,
  sampled,
)

RNG = np.random.default_rng(0)


@pytest.fixture(scope='module')
def run() -> Run:
  return load_run('dflash2-b6')


def scores_of(run, logits, hidden, candidates, anchor_B):
  """The table [B, S, N, N] of pairwise scores."""
  unary = jnp.take_along_axis(logits, candidates, axis=-1)
  return dflash2.selector_scores(
    run.cfg,
    run.params,
    unary[:, :, None],
    hidden[:, :, None],
    predecessors(candidates, anchor_B),
    candidates[:, :, None],
  )


def test_two_rounds_with_a_cached_context(run):
  cfg = run.cfg
  for want, cache, start in rounds_of(run):
    hidden = hidden_of(run, want, cache, start, flash2_hidden)
    np.testing.assert_allclose(hidden[:, 0], want['hidden_states'], atol=ATOL)
    hidden = backbone.proposing(cfg, hidden)[:, 0]
    logits = logits_of(cfg, hidden, run.head_VD)
    np.testing.assert_allclose(logits, want['logits'], atol=ATOL)
    found = top_k(logits, cfg.candidates)[1]
    np.testing.assert_array_equal(np.sort(found), np.sort(want['candidates']))
    candidates = jnp.asarray(want['candidates'])
    scores = scores_of(run, logits, hidden, candidates, want['anchor_id'])
    np.testing.assert_allclose(scores, want['selector_scores'], atol=ATOL)
    np.testing.assert_allclose(
      jax.nn.softmax(scores / 0.7), want['selector_q_T0.7'], atol=ATOL
    )
    tokens_BS, _ = walk(scores, candidates, None, Sampling.make(1))
    np.testing.assert_array_equal(tokens_BS, want['greedy_walk'])
    proposal = run.propose(cache, want['anchor_id'], start)
    np.testing.assert_array_equal(proposal.tokens_BS, want['greedy_walk'])


@pytest.mark.parametrize('part', ['attention', 'mlp'])
def test_convolutions_before_and_after_a_sublayer(run, part):
  want, _, _ = next(rounds_of(run))
  for i, recorded in enumerate(want[f'conv_{part}']):
    conv = getattr(run.params, f'{part}_convs')[i]
    x, convolved, y, after = recorded[:, None, None]
    found, dynamic = dflash2.before_sublayer(conv, x)
    np.testing.assert_allclose(found, convolved, atol=ATOL)
    found = dflash2.convolve(conv.base_2WD[1], dynamic, y)
    np.testing.assert_allclose(found, after, atol=ATOL)


def test_fresh_weights_are_a_dflash(run):
  want, cache, start = next(rounds_of(run))
  params = dflash2.random_dflash2(run.cfg, jax.random.key(3))
  fresh = dataclasses.replace(
    run, model=dataclasses.replace(run.model, params=params)
  )
  hidden = hidden_of(fresh, want, cache, start, flash2_hidden)
  expected = flash_hidden(
    run.cfg,
    params.backbone,
    run.embed_VD,
    want['anchor_id'][:, None],
    context_of(cache),
    place_of(cache, start),
  )
  np.testing.assert_allclose(hidden, expected, atol=1e-5)
  logits = logits_of(run.cfg, hidden[:, 0, 1:], run.head_VD)
  candidates = top_k(logits, run.cfg.candidates)[1]
  scores = scores_of(
    fresh, logits, hidden[:, 0, 1:], candidates, jnp.ones(1, int)
  )
  unary = jnp.take_along_axis(logits, candidates, axis=-1)
  np.testing.assert_array_equal(
    scores, np.broadcast_to(unary[:, :, None], scores.shape)
  )
  # B is zero, but A and P are not: it can learn.
  assert np.abs(params.selector.before_VR).max() > 0.01
  assert np.abs(params.selector.hidden_RD).max() > 0.01


def test_convolution_looks_left_and_not_past_the_edge_of_the_block(run):
  conv = run.params.mlp_convs[1]
  x = RNG.normal(size=(2, 3, 6, 64)).astype(np.float32)
  before, dynamic = dflash2.before_sublayer(conv, x)
  for slot in range(6):
    changed = x.copy()
    changed[0, 1, slot] += 1
    after, _ = dflash2.before_sublayer(conv, changed)
    moved = np.abs(after - before).max(-1)
    seen = np.zeros((2, 3, 6), bool)
    seen[0, 1, slot : slot + 2] = True
    assert np.all(moved[~seen] == 0)
    assert np.all(moved[seen] > 1e-3)
  # Slot 0 has nothing to its left: its second tap adds nothing.
  kernel = conv.base_2WD[1][0] + np.repeat(dynamic[..., 0, :], 16, axis=-1)
  np.testing.assert_allclose(
    dflash2.convolve(conv.base_2WD[1], dynamic, x)[:, :, 0],
    (kernel * x)[:, :, 0],
    atol=1e-6,
  )


def test_selection_from_the_table_is_sequential(run):
  anchors_B = np.arange(20)
  features = RNG.normal(size=(20, 9, 192)).astype(np.float32)
  cache = run.cache(features)
  hidden = flash2_hidden(
    run.cfg, run.params, run.embed_VD, anchors_B[:, None], context_of(cache),
    place_of(cache, 9),
  )[:, 0, 1:]  # fmt: skip
  logits = logits_of(run.cfg, hidden, run.head_VD)
  candidates = top_k(logits, run.cfg.candidates)[1]
  before_B, chosen = jnp.asarray(anchors_B), []
  for j in range(run.cfg.slots):
    unary = jnp.take_along_axis(logits[:, j], candidates[:, j], axis=-1)
    scores = dflash2.selector_scores(
      run.cfg, run.params, unary, hidden[:, j], before_B, candidates[:, j]
    )
    best = jnp.argmax(scores, axis=-1, keepdims=True)
    before_B = jnp.take_along_axis(candidates[:, j], best, axis=-1)[:, 0]
    chosen.append(before_B)
  proposal = run.propose(cache, anchors_B, 9)
  np.testing.assert_array_equal(proposal.tokens_BS, np.stack(chosen, axis=1))
  # Without the selector the choice is another one.
  assert np.any(np.argmax(logits, axis=-1) != proposal.tokens_BS)


def test_samples_with_the_law_that_it_states(run):
  want, _, start = next(rounds_of(run))
  found = sampled(run, want, start, 0.7, batch=1000)
  np.testing.assert_array_equal(found.tokens_BS[0], want['greedy_walk'][0])
  ids_BSN, probs_BSN = found.law.ids_BSN, found.law.probs_BSN
  same = ids_BSN[0] == found.tokens_BS[0][:, None]
  np.testing.assert_array_equal(np.sum(same * probs_BSN[0], axis=-1), 1)
  # Each slot by the row of the token before it; the commonest is tested.
  ids, q = want['candidates'][0], want['selector_q_T0.7'][0]
  tokens_BS = np.asarray(found.tokens_BS)
  for j in range(run.cfg.slots):
    chosen, i = np.arange(1, 1000), 0
    if j:
      before_B = tokens_BS[1:, j - 1]
      i = np.argmax([np.sum(before_B == t) for t in ids[j - 1]])
      chosen = 1 + np.flatnonzero(before_B == ids[j - 1, i])
    assert len(chosen) > 200
    law_V = np.zeros(run.cfg.vocab)
    law_V[ids[j]] = q[j, i]
    one = chosen[0]
    np.testing.assert_allclose(
      probs_BSN[one, j], law_V[ids_BSN[one, j]], atol=1e-5
    )
    assert_drawn_from(tokens_BS[chosen, j], law_V)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'conv_group': 24}, 'conv_group = 24 does not divide width = 64'),
    ({'conv_taps': 0}, 'conv_taps = 0, expected an integer >= 1'),
    ({'selector_rank': 1.5}, 'selector_rank = 1.5, expected an integer >= 1'),
    ({'candidates': 98}, 'candidates = 98 of a vocabulary of 97'),
    ({'qkv_bias': True}, 'qkv_bias = True: DFlash2 projects without bias'),
    ({'anchor_first': 1}, 'anchor_first = 1, expected True or False'),
  ],
)
def test_config_refuses(run, refused, change, message):
  with refused(message):
    dataclasses.replace(run.cfg, **change)
