"""Acceptance: the golden cases, exact one-slot laws, and chi-square tests of
what decoding emits, with controls that a wrong verifier must not pass."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.drafters.backbone import BackboneConfig
from spinejax.drafters.base import Dense, Proposal, Sparse
from spinejax.drafters.dflash import dflash
from spinejax.drafters.dspine import DSpineConfig, dspine
from spinejax.verify import chain
from spinejax.verify.sampling import Sampling, Stream, round_keys
from tests.decode.toy import random_backbone, random_dspine
from tests.verify.markov import (
  Setting,
  V,
  exact_law,
  markov,
  p_value,
  play,
  target_params,
)

GOLDEN = load_file(
  pathlib.Path(__file__).parents[1] / 'golden/sampling/sampling.safetensors'
)
DRAWS = 100_000
THRESHOLD = 1e-4
VERIFY = jax.jit(chain.verify)
KINDS = ('one_hot', 'sparse', 'dense')


def propose(tokens_BS, law):
  tokens_BS = jnp.asarray(tokens_BS, jnp.int32)
  return Proposal(tokens_BS, law, jnp.ones(tokens_BS.shape))


@pytest.mark.parametrize('case', range(12))
def test_golden_cases(case):
  got = {
    k.split('.', 1)[1]: jnp.asarray(v)
    for k, v in GOLDEN.items()
    if k.startswith(f'case{case}.')
  }
  p_BKV, tokens_BS = got['target_probs'], got['draft_tokens']
  if 'draft_indices' in got:
    law = Sparse(got['draft_indices'], got['draft_probs'])
  else:
    law = Dense(got['draft_probs'])
  proposal = propose(tokens_BS, law)
  p_BS = jnp.take_along_axis(p_BKV[:, :-1], tokens_BS[..., None], -1)[..., 0]
  passed_BS = chain.accept(got['uniforms'], p_BS, chain._probability(proposal))
  accepted_B = chain._run_length(passed_BS)
  assert int(accepted_B[0]) == int(got['accepted'])
  next_BV = chain.residual(p_BKV[:, int(accepted_B[0])], proposal, accepted_B)
  np.testing.assert_allclose(
    next_BV[0], got['next_token_distribution'], atol=1e-6
  )


def random_laws(rows, seed=0):
  """Random p and q, some with zeros, float32 [rows, V]."""
  rng = np.random.default_rng(seed)

  def draw():
    logits = rng.normal(size=(rows, V)) * 2
    logits[rng.random((rows, V)) < 0.2] = -np.inf
    logits[:, 0] = np.maximum(logits[:, 0], -1)
    return jnp.asarray(jax.nn.softmax(logits), jnp.float32)

  return draw(), draw()


def one_slot(kind, q_BV):
  """The law of a kind made from q, as an array [B, V] and as the record."""
  if kind == 'dense':
    return q_BV, Dense(q_BV[:, None])
  count = {'one_hot': 1, 'sparse': 3}[kind]
  probs_BN, ids_BN = jax.lax.top_k(q_BV, count)
  probs_BN /= probs_BN.sum(-1, keepdims=True)
  kept_BV = jnp.put_along_axis(
    jnp.zeros_like(q_BV), ids_BN, probs_BN, -1, inplace=False
  )
  # A slot of padding: no id, no mass.
  ids_BN = jnp.pad(ids_BN, ((0, 0), (0, 1)), constant_values=-1)
  probs_BN = jnp.pad(probs_BN, ((0, 0), (0, 1)))
  return kept_BV, Sparse(ids_BN[:, None], probs_BN[:, None])


@pytest.mark.parametrize('kind', KINDS)
def test_one_slot_emits_exactly_p(kind):
  """P(x) = q(x) P(u q < p) + P(reject) residual(x), u integrated out."""
  p_BV, q_BV = random_laws(rows=64)
  q_BV, law = one_slot(kind, q_BV)
  drawable = np.asarray(q_BV) > 0
  accepted_BV = np.minimum(np.asarray(p_BV, np.float64), q_BV)
  rejected_B1 = 1 - accepted_BV.sum(-1, keepdims=True)
  tokens_BS = jnp.argmax(q_BV, -1)[:, None]
  none_B = jnp.zeros(len(q_BV), jnp.int32)
  rest_BV = chain.residual(p_BV, propose(tokens_BS, law), none_B)
  emitted_BV = accepted_BV + rejected_B1 * np.asarray(rest_BV)
  np.testing.assert_allclose(emitted_BV, p_BV, atol=1e-6)
  # The share of u in [0, 1) that `accept` lets pass is min(1, p / q).
  grid = (np.arange(1000, dtype=np.float32) + 0.5) / 1000
  passed = chain.accept(grid[:, None, None], p_BV, q_BV).mean(0)
  ratio = np.asarray(p_BV) / np.where(drawable, q_BV, 1)
  np.testing.assert_allclose(
    passed[drawable], np.minimum(1, ratio)[drawable], atol=1.1e-3
  )
  # And `_probability` reads that q off the record.
  for token in range(V):
    tokens_BS = jnp.full((len(q_BV), 1), token)
    np.testing.assert_array_equal(
      chain._probability(propose(tokens_BS, law))[:, 0], q_BV[:, token]
    )


@pytest.mark.parametrize('kind', KINDS)
def test_residual_is_p_where_nothing_was_refused(kind):
  p_BV, q_BV = random_laws(rows=8)
  q_BV, law = one_slot(kind, q_BV)
  best_BS, ones_B = jnp.argmax(q_BV, -1)[:, None], jnp.ones(8, jnp.int32)
  full = chain.residual(p_BV, propose(best_BS, law), ones_B)
  np.testing.assert_array_equal(full, p_BV)
  empty = propose(jnp.full((8, 1), -1), law)
  np.testing.assert_array_equal(chain.residual(p_BV, empty, 0 * ones_B), p_BV)
  no_slots = propose(jnp.zeros((8, 0)), Dense(jnp.zeros((8, 0, V))))
  np.testing.assert_array_equal(
    chain.residual(p_BV, no_slots, 0 * ones_B), p_BV
  )


def test_residual_without_mass_falls_back_to_p():
  p_BV, _ = random_laws(rows=8)
  equal = propose(jnp.zeros((8, 1)), Dense(p_BV[:, None]))
  rest = chain.residual(p_BV, equal, jnp.zeros(8, jnp.int32))
  np.testing.assert_array_equal(rest, p_BV)


def test_greedy_accepts_the_prefix_of_argmaxes():
  rng = np.random.default_rng(0)
  logits_BKV = rng.normal(size=(500, 5, 3)).astype(np.float32)
  best_BK = logits_BKV.argmax(-1)
  tokens_BS = rng.integers(-1, 3, (500, 4))
  right_BS = rng.random((500, 4)) < 0.7
  tokens_BS = np.where(right_BS, best_BK[:, :-1], tokens_BS)
  got = VERIFY(
    jnp.asarray(logits_BKV),
    Proposal.certain(jnp.asarray(tokens_BS, jnp.int32)),
    Sampling.make(500),
    jnp.zeros(500, jnp.uint32),
    jnp.zeros(500, jnp.int32),
  )
  for b in range(500):
    run = 0
    while run < 4 and tokens_BS[b, run] == best_BK[b, run]:
      run += 1
    assert int(got.accepted_B[b]) == run
    assert int(got.next_B[b]) == best_BK[b, run]
  assert set(np.asarray(got.accepted_B)) == {0, 1, 2, 3, 4}


def test_temperature_zero_in_a_sampled_batch_is_greedy():
  rng = np.random.default_rng(0)
  logits_BKV = jnp.asarray(rng.normal(size=(200, 4, 3)), jnp.float32)
  tokens_BS = jnp.asarray(rng.integers(-1, 3, (200, 3)), jnp.int32)
  mixed = Sampling(
    temperature_B=jnp.arange(200) % 2 * 1.0,
    top_k_B=jnp.zeros(200, jnp.int32),
    top_p_B=jnp.ones(200),
    greedy=False,
  )
  place = (jnp.arange(200, dtype=jnp.uint32), jnp.arange(200))
  proposal = Proposal.certain(tokens_BS)
  got = VERIFY(logits_BKV, proposal, mixed, *place)
  want = VERIFY(logits_BKV, proposal, Sampling.make(200), *place)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_array_equal(a[::2], b[::2])


def test_a_request_does_not_depend_on_its_place_in_the_batch():
  rng = np.random.default_rng(0)
  B = 64
  logits_BKV = jnp.asarray(rng.normal(size=(B, 4, V)), jnp.float32)
  q_BSV = jax.nn.softmax(jnp.asarray(rng.normal(size=(B, 3, V)), jnp.float32))
  tokens_BS = jnp.asarray(rng.integers(-1, V, (B, 3)), jnp.int32)
  seed_B = jnp.asarray(rng.integers(0, 9, B), jnp.uint32)
  position_B = jnp.asarray(rng.integers(0, 9, B))
  sampling = Sampling(
    jnp.asarray(rng.choice([0.5, 1.0], B), jnp.float32),
    jnp.asarray(rng.choice([0, 3], B), jnp.int32),
    jnp.asarray(rng.choice([0.7, 1.0], B), jnp.float32),
    greedy=False,
  )

  def run(order):
    at = (logits_BKV, propose(tokens_BS, Dense(q_BSV)), sampling)
    return VERIFY(*jax.tree.map(lambda x: x[order], (*at, seed_B, position_B)))

  order = rng.permutation(B)
  moved, still = run(order), run(np.arange(B))
  np.testing.assert_array_equal(moved.accepted_B, still.accepted_B[order])
  np.testing.assert_array_equal(moved.next_B, still.next_B[order])


@pytest.mark.parametrize('kind', ('dense', 'one_hot'))
def test_acceptance_rate(kind):
  """sum min(p, q); of samples that are called certain only sum p q."""
  p_BV, q_BV = random_laws(rows=1)
  B = 20_000
  p_BKV = jnp.broadcast_to(p_BV[:, None], (B, 2, V))
  q_BSV = jnp.broadcast_to(q_BV[:, None], (B, 1, V))
  seed_B, position_B = jnp.arange(B, dtype=jnp.uint32), jnp.zeros(B, jnp.int32)
  keys_B = round_keys(seed_B, position_B, Stream.DRAFT)
  tokens_B = jax.vmap(jax.random.categorical)(keys_B, jnp.log(q_BSV[:, 0]))
  proposal = propose(tokens_B[:, None], Dense(q_BSV))
  rate = float(jnp.minimum(p_BV, q_BV).sum())
  if kind == 'one_hot':
    proposal = Proposal.certain(proposal.tokens_BS)
    rate = float((p_BV * q_BV).sum())
  sampling = Sampling.make(B, temperature=1.0)
  got = VERIFY(jnp.log(p_BKV), proposal, sampling, seed_B, position_B)
  deviation = (rate * (1 - rate) / B) ** 0.5
  assert abs(float(got.accepted_B.mean()) - rate) < 4 * deviation


@pytest.mark.parametrize('kind', (*KINDS, 'unlabelled'))
def test_emitted_tokens_follow_the_target(kind):
  """Three tokens jointly: several slots, rounds and accepted lengths."""
  (got,) = play(markov(kind), (Setting(),), DRAWS)
  assert p_value(got, exact_law(Setting())) > THRESHOLD


@pytest.mark.parametrize('kind', KINDS)
def test_empty_slots_and_truncated_verification_keep_the_law(kind):
  draft = markov(kind, gaps=True)
  (got,) = play(draft, (Setting(),), DRAWS, limited=True)
  assert p_value(got, exact_law(Setting())) > THRESHOLD


@pytest.mark.parametrize('kind', KINDS)
def test_settings_stop_tokens_and_caps_keep_the_law(kind):
  """Requests of one batch that sample and end each in its own way."""
  groups = (
    Setting(temperature=0.7, top_k=5, top_p=0.9),
    Setting(temperature=1.3, cap=2),
    Setting(top_p=0.8, cap=1),
    Setting(temperature=0.0),
  )
  stop_ids = (3, 6)
  outcomes = play(markov(kind), groups, DRAWS, stop_ids)
  for setting, got in zip(groups, outcomes, strict=True):
    assert p_value(got, exact_law(setting, stop_ids)) > THRESHOLD, setting


def small(kind, **extra):
  """A block drafter's config for the toy target."""
  return kind(
    vocab=V, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn=16,
    block=3, mask_id=0, taps=(-1,), **extra,
  )  # fmt: skip


@pytest.mark.parametrize('method', ('dflash', 'dspine'))
def test_real_drafters_state_the_law_they_draw_from(method):
  """Their laws, dense and sparse, with random weights."""
  setting = Setting(temperature=0.8, top_k=7)
  if method == 'dflash':
    cfg = small(BackboneConfig)
    drafter, params = dflash(cfg), random_backbone(cfg, seed=0)
  else:
    cfg = small(DSpineConfig, rank=5, message=6, candidates=3)
    drafter = dspine(cfg)
    params = random_dspine(cfg, target_params().head_VD, seed=0)
  (got,) = play((drafter, params), (setting,), DRAWS // 4)
  assert p_value(got, exact_law(setting)) > THRESHOLD


def test_the_statistic_passes_the_law_itself_and_no_other():
  law = exact_law(Setting())
  rng = np.random.default_rng(0)
  draws = rng.choice(len(law), DRAWS, p=law)
  assert p_value(draws, law) > THRESHOLD
  assert p_value(draws, exact_law(Setting(temperature=1.05))) < THRESHOLD


@pytest.mark.parametrize('kind', ('mislabelled', 'tempered', 'picky'))
def test_control_drafts_with_a_wrong_law_are_found(kind):
  (got,) = play(markov(kind), (Setting(),), DRAWS)
  assert p_value(got, exact_law(Setting())) < THRESHOLD


def reuse(stream, of):
  """`round_keys` that gives one stream the noise of another."""

  def keys(seed_B, position_B, asked):
    return round_keys(seed_B, position_B, of if asked == stream else asked)

  return keys


def frozen(seed_B, position_B, stream):
  """`round_keys` that draws the same noise in every round."""
  return round_keys(seed_B, 0 * position_B, stream)


def biased(p_BV, proposal, accepted_B):
  """`residual` that forgets what was refused."""
  return p_BV


@pytest.mark.parametrize(
  'name, wrong',
  (
    ('round_keys', reuse(Stream.RESIDUAL, of=Stream.DRAFT)),
    ('round_keys', reuse(Stream.ACCEPT, of=Stream.DRAFT)),
    ('round_keys', frozen),
    ('residual', biased),
  ),
  ids=('residual noise of the draft', 'acceptance noise of the draft',
       'the same noise every round', 'residual that is p'),
)  # fmt: skip
def test_control_wrong_verifiers_are_found(monkeypatch, name, wrong):
  monkeypatch.setattr(chain, name, wrong)
  (got,) = play(markov('dense'), (Setting(),), DRAWS // 4, patched=True)
  assert p_value(got, exact_law(Setting())) < THRESHOLD
