"""DSpark against the published reference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone, dspark
from spinejax.target import layers as nn
from tests.drafters.runs import (
  ATOL,
  Run,
  assert_drawn_from,
  hidden_of,
  load_run,
  rounds_of,
  sampled,
  static_jit,
  trained_hidden,
)

NAMES = ('dspark-vanilla', 'dspark-gated', 'dspark-rnn')
RNG = np.random.default_rng(0)


@pytest.fixture(scope='module', params=NAMES)
def run(request) -> Run:
  return load_run(request.param)


@static_jit
def heads(cfg, params, head_VD, hidden_BASD, before_BAS):
  """Base and corrected logits, and confidence, behind known tokens."""
  base = backbone.logits_of(cfg, hidden_BASD, head_VD)
  z = dspark.correction(cfg, params, None, hidden_BASD, before_BAS)
  confidence = dspark.confidence_logits(cfg, params, hidden_BASD, before_BAS)
  return base, base + nn.dense(z, params.up_VE), confidence


def test_two_rounds_with_a_cached_context(run):
  for want, cache, start in rounds_of(run):
    hidden = hidden_of(run, want, cache, start)
    np.testing.assert_allclose(hidden[:, 0], want['hidden_states'], atol=ATOL)
    anchor_B, tokens_BS = want['anchor_id'], want['proposals']
    before = np.concatenate([anchor_B[:, None], tokens_BS[:, :-1]], axis=1)
    base, corrected, confidence = heads(
      run.cfg, run.params, run.head_VD, hidden, before[:, None]
    )
    for found, name in (
      (base, 'base_logits'),
      (corrected, 'corrected_logits'),
      (confidence, 'confidence_logits'),
    ):
      np.testing.assert_allclose(found[:, 0], want[name], atol=ATOL)
    proposal = run.propose(cache, anchor_B, start)
    np.testing.assert_array_equal(proposal.tokens_BS, tokens_BS)
    # The anchor's slot proposes too.
    assert proposal.tokens_BS.shape == (1, run.cfg.block)
    np.testing.assert_allclose(
      proposal.confidence_BS,
      1 / (1 + np.exp(-want['confidence_logits'])),
      atol=ATOL,
    )
    sure = np.cumprod(proposal.confidence_BS[0] >= 0.5).sum()
    assert sure == want['draft_token_count_at_0.5']


def test_many_anchors_of_a_training_batch(run):
  expected = run.recorded('train')
  kept, hidden = trained_hidden(run, run.params.backbone)
  anchor_BA1 = expected['block_ids'][..., :1]
  before = np.concatenate([anchor_BA1, expected['labels'][..., :-1]], axis=-1)
  np.testing.assert_array_equal(before[kept], expected['predecessor_ids'][kept])
  found = heads(
    run.cfg, run.params, run.head_VD, hidden, expected['predecessor_ids']
  )
  for part, name in zip(
    found,
    ('base_logits', 'corrected_logits', 'confidence_logits'),
    strict=True,
  ):
    np.testing.assert_allclose(part[kept], expected[name][kept], atol=ATOL)


def test_layout_of_specforge_is_the_same_drafter():
  run, other = load_run('dspark-vanilla'), load_run('dspark-specforge-layout')
  assert other.cfg == run.cfg
  jax.tree.map(np.testing.assert_array_equal, other.params, run.params)
  for want, cache, start in rounds_of(run):
    proposal = other.propose(cache, want['anchor_id'], start)
    np.testing.assert_array_equal(proposal.tokens_BS, want['proposals'])


def test_samples_with_the_law_that_it_states(run):
  want, _, start = next(rounds_of(run))
  found = sampled(run, want, start, 0.7, batch=1000)
  np.testing.assert_array_equal(found.tokens_BS[0], want['proposals'][0])
  law_BSV = np.asarray(found.law.probs_BSV)
  picked = np.take_along_axis(law_BSV, found.tokens_BS[..., None], axis=-1)
  np.testing.assert_array_equal(picked[0], 1)
  assert np.all(picked > 0)
  tokens_BS = np.asarray(found.tokens_BS)
  first = np.exp(want['corrected_logits'][0, 0].astype(np.float64) / 0.7)
  np.testing.assert_allclose(law_BSV[1, 0], first / first.sum(), atol=1e-5)
  for k in range(run.cfg.slots):
    # Requests with the commonest path up to here, which share its law.
    paths, which, counts = np.unique(
      tokens_BS[1:, :k], axis=0, return_inverse=True, return_counts=True
    )
    same = 1 + np.flatnonzero(which.reshape(-1) == np.argmax(counts))
    if len(same) < 100:
      assert k > 1
      break
    laws = law_BSV[same, k]
    np.testing.assert_allclose(laws, laws[:1].repeat(len(same), 0), atol=1e-6)
    assert_drawn_from(tokens_BS[same, k], laws[0])


def test_sampled_law_is_that_of_the_path_that_was_drawn(run):
  """Confidence and law of every slot, recomputed behind the drawn tokens."""
  B = 20
  want, _, start = next(rounds_of(run))
  found = sampled(run, want, start, 1.0, batch=B)
  cache = run.cache(np.repeat(want['pending_features'], B, axis=0))
  many = want | {'anchor_id': np.repeat(want['anchor_id'], B)}
  hidden = hidden_of(run, many, cache, start)
  before = np.concatenate(
    [many['anchor_id'][:, None], found.tokens_BS[:, :-1]], axis=1
  )
  _, logits, confidence = heads(
    run.cfg, run.params, run.head_VD, hidden, before[:, None]
  )
  np.testing.assert_allclose(
    found.law.probs_BSV[1:], jax.nn.softmax(logits[1:, 0]), atol=1e-5
  )
  np.testing.assert_allclose(
    found.confidence_BS, jax.nn.sigmoid(confidence[:, 0]), atol=1e-5
  )


def test_drafter_without_confidence_head_goes_by_its_law(run):
  want, cache, start = next(rounds_of(run))
  cfg = dataclasses.replace(run.cfg, confidence=False)
  model = dataclasses.replace(run.model, drafter=dspark.dspark(cfg))
  silent = dataclasses.replace(run, model=model)
  proposal = silent.propose(cache, want['anchor_id'], start)
  np.testing.assert_array_equal(proposal.tokens_BS, want['proposals'])
  law_BSV = jax.nn.softmax(want['corrected_logits'])
  np.testing.assert_allclose(proposal.confidence_BS, law_BSV.max(-1), atol=ATOL)


def test_fresh_weights_correct_little(run):
  cfg = run.cfg
  params = dspark.random_dspark(cfg, jax.random.key(0))
  shapes = jax.tree.map(jnp.shape, run.params)
  assert jax.tree.map(jnp.shape, params) == shapes
  hidden = RNG.normal(size=(2, 3, 5, 32)).astype(np.float32)
  before = RNG.integers(0, 97, (2, 3, 5))
  base, corrected, confidence = heads(cfg, params, run.head_VD, hidden, before)
  change = np.abs(corrected - base)
  assert 0 < change.max() < 0.05
  assert np.abs(confidence).max() < 0.5


@pytest.mark.parametrize(
  'change, message',
  [
    ({'markov_rank': 0}, 'markov_rank = 0, expected an integer >= 1'),
    (
      {'markov_head': 'gru'},
      "markov_head = 'gru', expected one of vanilla, gated, rnn",
    ),
    ({'confidence': 1}, 'confidence = 1, expected True or False'),
    (
      {'anchor_first': False},
      'anchor_first = False: the anchor of DSpark proposes',
    ),
    ({'block': 0}, 'block = 0, expected an integer >= 1'),
  ],
)
def test_config_refuses(refused, change, message):
  with refused(message):
    dataclasses.replace(load_run('dspark-vanilla').cfg, **change)
