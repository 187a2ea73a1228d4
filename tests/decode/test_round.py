"""One round: what is committed, and what holds between rounds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode import round as rounds
from spinejax.decode.generate import start
from spinejax.decode.state import DecodeState
from spinejax.drafters.base import Proposal
from spinejax.target.model import Forward, KVCache
from spinejax.verify.chain import Verdict
from spinejax.verify.sampling import Sampling
from tests.decode import toy
from tests.decode.toy import NEW, SLOTS, STOPS

PROMPTS = toy.prompts(1, 2, 9, 17, 4, 30)
STEP = jax.jit(rounds.step, static_argnums=(0, 1))
COMMIT = jax.jit(rounds.commit)
PREFILL = jax.jit(rounds.prefill, static_argnums=(0, 1, 4))


def random_rows(slots, stop_ids, seed=0, B=1500, V=7, T=30):
  """States, proposals, verdicts and forward passes that could be."""
  rng = np.random.default_rng(seed)
  length_B = rng.integers(1, T - slots - 8, B)
  cap_B = length_B + rng.integers(0, 8, B)
  done_B = (cap_B == length_B) | (rng.random(B) < 0.2)
  tokens_BT = rng.integers(0, V, (B, T))
  tokens_BS = rng.integers(0, V, (B, slots))
  empty_B = rng.integers(0, 3 * slots + 1, B)
  tokens_BS[np.arange(slots) >= empty_B[:, None]] = -1
  accepted_B = rng.integers(0, np.minimum(empty_B, slots) + 1)

  def cache(length_B):
    return KVCache((), (), jnp.asarray(length_B, jnp.int32))

  state = DecodeState(
    tokens_BT=tokens_BT,
    length_B=length_B,
    prompt_length_B=np.maximum(length_B - rng.integers(0, 5, B), 1),
    cap_B=cap_B,
    done_B=done_B,
    anchor_B=tokens_BT[np.arange(B), length_B - 1],
    target_cache=cache(length_B - 1),
    draft_cache=cache(length_B - 1),
    pending_BKP=np.zeros((B, slots + 1, 3), np.float32),
    pending_count_B=rng.integers(0, slots + 2, B),
    seed_B=np.arange(B, dtype=np.uint32),
    stop_ids_E=np.asarray(stop_ids, np.int32),
    stops_B=jnp.arange(B) % 5 > 0,
    accepted_hist_BK=rng.integers(0, 9, (B, slots + 1)),
    rounds_B=rng.integers(0, 9, B),
    judged_BS=rng.integers(0, 9, (B, slots)),
    passed_BS=rng.integers(0, 9, (B, slots)),
  )
  state = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.int32 if x.dtype == np.int64 else x.dtype),
    state,
  )
  features = jnp.asarray(rng.normal(size=(B, slots + 1, 3)), jnp.float32)
  out = Forward(features, features, cache(length_B - 1))
  proposal = Proposal.certain(jnp.asarray(tokens_BS, jnp.int32))
  next_B = jnp.asarray(rng.integers(0, V, B), jnp.int32)
  return state, proposal, Verdict(jnp.asarray(accepted_B), next_B), out


@pytest.mark.parametrize(
  'slots, stop_ids',
  ((0, (0, 5)), (1, (0, 5)), (4, (0, 5)), (4, (3, 3)), (4, (-1, 9)), (4, ())),
)
def test_commit_against_a_loop_over_requests(slots, stop_ids):
  state, proposal, verdict, out = random_rows(slots, stop_ids)
  got = COMMIT(state, proposal, verdict, out)
  old, new = jax.device_get((state, got))
  for b in range(len(old.length_B)):
    run = [
      *proposal.tokens_BS[b, : int(verdict.accepted_B[b])].tolist(),
      int(verdict.next_B[b]),
    ]
    run = run[: old.cap_B[b] - old.length_B[b]]
    stops = stop_ids if old.stops_B[b] else ()
    ends = [i + 1 for i, t in enumerate(run) if t in stops]
    run = [] if old.done_B[b] else run[: min([slots + 1, *ends])]
    count, length = len(run), old.length_B[b]
    judged, passed = old.judged_BS[b].copy(), old.passed_BS[b].copy()
    if not old.done_B[b]:
      for slot, token in enumerate(proposal.tokens_BS[b]):
        if token < 0:
          break
        judged[slot] += 1
        if slot == verdict.accepted_B[b]:
          break
        passed[slot] += 1
    np.testing.assert_array_equal(new.judged_BS[b], judged)
    np.testing.assert_array_equal(new.passed_BS[b], passed)
    tokens = old.tokens_BT[b].copy()
    tokens[length : length + count] = run
    hist = old.accepted_hist_BK[b].copy()
    if count:
      hist[count - 1] += 1
    np.testing.assert_array_equal(new.tokens_BT[b], tokens)
    np.testing.assert_array_equal(new.accepted_hist_BK[b], hist)
    assert new.length_B[b] == length + count
    assert new.target_cache.length_B[b] == length + count - 1
    assert new.anchor_B[b] == (run[-1] if run else old.anchor_B[b])
    assert new.pending_count_B[b] == count
    assert new.rounds_B[b] == old.rounds_B[b] + (count > 0)
    assert new.done_B[b] == (
      old.done_B[b] or bool(ends) or length + count == old.cap_B[b]
    )
  np.testing.assert_array_equal(new.pending_BKP, out.features_BQP)
  for field in ('prompt_length_B', 'cap_B', 'seed_B', 'stop_ids_E', 'stops_B'):
    np.testing.assert_array_equal(getattr(new, field), getattr(old, field))
  np.testing.assert_array_equal(
    new.draft_cache.length_B, old.draft_cache.length_B
  )


def prefilled(draft, chunk=32, stop_ids=STOPS):
  """The state of PROMPTS after prefill, with weights."""
  target = toy.target()
  state = start(target, draft, PROMPTS, NEW, stop_ids=stop_ids, capacity=128)
  params = rounds.Params(target.params, draft.params)
  for _ in range(-(-30 // chunk)):
    state = PREFILL(target.cfg, draft.drafter, params, state, chunk)
  return params, state


@functools.cache
def known_model():
  """An oracle for PROMPTS, and the answers that it knows."""
  blind = toy.oracle_model(PROMPTS, [[]] * len(PROMPTS))
  params, state = prefilled(blind)
  *_, (_, _, last) = run(blind, state, params, limit=lambda state: 0)
  answers = emitted(last.state)
  return toy.oracle_model(PROMPTS, answers), answers


def run(draft, state, params, limit=lambda state: SLOTS):
  """All rounds until the end, with the proposals that each may verify."""
  B = len(PROMPTS)
  while not state.done_B.all():
    limit_B = jnp.broadcast_to(limit(state), (B,))
    done = STEP(
      toy.target().cfg, draft.drafter, params, state, Sampling.make(B), limit_B
    )
    yield limit_B, state, done
    state = done.state


def emitted(state):
  """The new tokens of each request."""
  return [
    np.asarray(tokens)[prompt:length].tolist()
    for tokens, prompt, length in zip(
      state.tokens_BT, state.prompt_length_B, state.length_B, strict=True
    )
  ]


def test_what_holds_between_rounds():
  draft, answers = known_model()
  params, state = prefilled(draft, stop_ids=(answers[1][5], answers[2][2]))
  for _, before, done in run(draft, state, params):
    after = done.state
    length_B = after.length_B
    np.testing.assert_array_equal(after.target_cache.length_B, length_B - 1)
    # The draft cache lags behind by exactly what is pending.
    np.testing.assert_array_equal(
      after.draft_cache.length_B + after.pending_count_B, length_B - 1
    )
    last_B1 = length_B[:, None] - 1
    anchor_B1 = jnp.take_along_axis(after.tokens_BT, last_B1, axis=1)
    np.testing.assert_array_equal(after.anchor_B, anchor_B1[:, 0])
    kept_B = after.accepted_hist_BK @ jnp.arange(1, SLOTS + 2)
    np.testing.assert_array_equal(kept_B, length_B - after.prompt_length_B)
    np.testing.assert_array_equal(after.accepted_hist_BK.sum(1), after.rounds_B)
    assert (length_B <= after.cap_B).all()
    assert (length_B - before.length_B <= done.verdict.accepted_B + 1).all()
    assert (after.done_B >= before.done_B).all()
    same = before.done_B
    np.testing.assert_array_equal(after.tokens_BT[same], before.tokens_BT[same])
    np.testing.assert_array_equal(length_B[same], before.length_B[same])


@pytest.mark.parametrize(
  'limit',
  (
    lambda state: SLOTS,
    lambda state: 0,
    lambda state: 2,
    lambda state: (state.length_B + jnp.arange(len(PROMPTS))) % (SLOTS + 1),
    lambda state: SLOTS + 9,
  ),
  ids=('all', 'none', 'two', 'ragged', 'too many'),
)
def test_limits_cut_the_run_and_not_the_output(limit):
  draft, answers = known_model()
  params, state = prefilled(draft)
  for limit_B, _, done in run(draft, state, params, limit):
    assert (done.verdict.accepted_B <= limit_B).all()
    shown_BS = jnp.arange(SLOTS) < limit_B[:, None]
    assert (shown_BS | (done.proposal.tokens_BS == -1)).all()
  assert emitted(done.state) == answers


def test_step_is_pure():
  draft, _ = known_model()
  params, state = prefilled(draft)
  kept = jax.tree.map(np.array, state)
  (_, _, first), (_, _, second) = (
    next(run(draft, state, params)) for _ in range(2)
  )
  assert not any(x.is_deleted() for x in jax.tree.leaves(state))
  jax.tree.map(np.testing.assert_array_equal, state, kept)
  jax.tree.map(np.testing.assert_array_equal, first, second)


def test_prefill_reads_all_but_the_last_token_in_any_chunks():
  draft = toy.dflash_model()
  _, once = prefilled(draft)
  _, chunked = prefilled(draft, chunk=7)
  read_B = np.array([len(p) - 1 for p in PROMPTS])
  for state in (once, chunked):
    np.testing.assert_array_equal(state.target_cache.length_B, read_B)
    np.testing.assert_array_equal(state.draft_cache.length_B, read_B)
    np.testing.assert_array_equal(state.length_B, read_B + 1)
    np.testing.assert_array_equal(state.anchor_B, [p[-1] for p in PROMPTS])
    assert not state.done_B.any()
  for field in ('target_cache', 'draft_cache'):
    a, b = getattr(once, field), getattr(chunked, field)
    for x, y in zip((*a.k, *a.v), (*b.k, *b.v), strict=True):
      for row, n in enumerate(read_B):
        np.testing.assert_allclose(x[row, :, :n], y[row, :, :n], atol=1e-4)


def test_a_request_at_its_cap_is_done_from_the_start():
  draft, _ = known_model()
  params, state = prefilled(draft)
  cap_B = state.cap_B.at[2].set(state.length_B[2])
  state = dataclasses.replace(
    state, cap_B=cap_B, done_B=state.length_B >= cap_B
  )
  *_, (_, _, last) = run(draft, state, params)
  assert emitted(last.state)[2] == []
  assert int(last.state.rounds_B[2]) == 0
