"""Algorithm 1 against brute force, and what its early stop is good for."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode import schedule as sched
from spinejax.decode.schedule import Schedule, admit
from spinejax.drafters.base import Dense, Proposal
from spinejax.verify.chain import verify
from spinejax.verify.sampling import Sampling
from tests.verify.markov import p_value

ADMIT = jax.jit(jax.vmap(admit, (0, 0, 0, None)), static_argnums=3)


def total(survival_RS, live_R, rate_Q, lengths):
  """Theta of given verify lengths; 0 beyond the budget."""
  rows = sum(1 + n for n, live in zip(lengths, live_R, strict=True) if live)
  tokens = sum(
    1 + sum(a[:n])
    for a, n, live in zip(survival_RS, lengths, live_R, strict=True)
    if live
  )
  return tokens * rate_Q[rows] if rows < len(rate_Q) else 0.0


def algorithm_1(survival_RS, live_R, rate_Q):
  """As the paper writes it."""
  R, S = survival_RS.shape
  lengths = [0] * R
  best = total(survival_RS, live_R, rate_Q, lengths)
  pairs = [(r, j) for j in range(S) for r in range(R) if live_R[r]]
  for r, j in sorted(pairs, key=lambda at: -survival_RS[at]):
    lengths[r] = j + 1
    theta = total(survival_RS, live_R, rate_Q, lengths)
    if theta <= best:
      lengths[r] = j
      break
    best = theta
  return lengths


def problems(cost, count=60, R=3, S=3, budget=9):
  """Random survivals, who is live, and rates."""
  rng = np.random.default_rng(0)
  survival = np.cumprod(rng.random((count, R, S)) ** 0.4, axis=-1)
  live = rng.random((count, R)) < 0.8
  rows = np.arange(budget + 1)
  if cost == 'affine':
    rates = 1 / (1 + rng.random((count, 1)) * rows / 3)
  else:
    rates = 0.5 + rng.random((count, budget + 1))
  return [x.astype(np.float32) for x in (survival, rates)], live


@pytest.mark.parametrize('cost', ('affine', 'any'))
def test_global_search_is_the_optimum(cost):
  (survival, rates), live = problems(cost)
  found = np.asarray(ADMIT(survival, live, rates, False))
  assert (found[~live] == 0).all()
  for a, up, rate, lengths in zip(survival, live, rates, found, strict=True):
    every = itertools.product(range(4), repeat=3)
    best = max(total(a, up, rate, some) for some in every)
    assert total(a, up, rate, lengths) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize('cost', ('affine', 'any'))
def test_early_stop_is_algorithm_1(cost):
  (survival, rates), live = problems(cost)
  found = np.asarray(ADMIT(survival, live, rates, True))
  known = [algorithm_1(*one) for one in zip(survival, live, rates, strict=True)]
  np.testing.assert_array_equal(found, known)
  # Where throughput has one peak, that is the optimum.
  best = np.asarray(ADMIT(survival, live, rates, False))
  assert (found == best).all() == (cost == 'affine')


def test_a_constant_rate_fills_the_budget():
  (survival, _), live = problems('any')
  found = np.asarray(ADMIT(survival, live, np.ones((60, 8), 'f'), True))
  rows = found.sum(1) + live.sum(1)
  np.testing.assert_array_equal(
    rows[live.any(1)], np.minimum(4 * live.sum(1), 7)[live.any(1)]
  )
  # Of equals the first slots, so that no request is left out.
  ones = np.ones((1, 3, 3), np.float32)
  found = ADMIT(ones, np.ones((1, 3), bool), np.ones((1, 8), 'f'), True)
  assert found.tolist() == [[2, 1, 1]]


# A world of 4 tokens whose next one hangs on the last one.
V, N = 4, 40_000
ANCHOR = 0
LAW = np.random.default_rng(1).dirichlet(np.ones(V), V).astype(np.float32)
DRAFT = np.random.default_rng(2).dirichlet(np.ones(V), V).astype(np.float32)
# Sure of the slot after token 1, of no other.
SURE = np.array([0.7, 0.99, 0.05, 0.1], np.float32)
# Two rows do not pay; three do, if the second proposal is likely enough.
DIP = (0.0, 1.0, 0.5, 0.5)
# As it should be: fewer rounds the more rows.
FALLING = tuple(1 / (1 + 0.15 * rows) for rows in range(9))


@functools.partial(jax.jit, static_argnums=(0, 2))
def emit(requests, rate_Q, stop):
  """The first two tokens of N requests, scheduled in groups."""
  S = 3
  law_VV, draft_VV, sure_V = map(jnp.asarray, (LAW, DRAFT, SURE))
  keys = jax.random.split(jax.random.key(0), S + 1)
  before_B, tokens = jnp.full((N,), ANCHOR), []
  for k in range(S):
    tokens.append(jax.random.categorical(keys[k], jnp.log(draft_VV[before_B])))
    before_B = tokens[-1]
  tokens_BS = jnp.stack(tokens, axis=1)
  before_BK = jnp.pad(tokens_BS, ((0, 0), (1, 0)), constant_values=ANCHOR)
  survival_BS = jnp.cumprod(sure_V[before_BK[:, :S]], axis=1)
  in_groups = jax.vmap(
    lambda a: admit(a, jnp.ones(requests, bool), rate_Q, stop)
  )
  limit_B = in_groups(survival_BS.reshape(-1, requests, S)).reshape(-1)
  shown_BS = jnp.where(jnp.arange(S) < limit_B[:, None], tokens_BS, -1)
  verdict = verify(
    jnp.log(law_VV[before_BK]),
    Proposal(shown_BS, Dense(draft_VV[before_BK[:, :S]]), None),
    Sampling.make(N, 1.0),
    jnp.arange(N, dtype=jnp.uint32),
    jnp.zeros((N,), jnp.int32),
  )
  run_B = verdict.accepted_B[:, None]
  run_BK = jnp.where(
    jnp.arange(S + 1) == run_B,
    verdict.next_B[:, None],
    before_BK[:, [1, 2, 3, 3]],
  )
  # What the round did not emit is drawn from the law itself.
  later_B = jax.random.categorical(keys[S], jnp.log(law_VV[run_BK[:, 0]]))
  second_B = jnp.where(verdict.accepted_B > 0, run_BK[:, 1], later_B)
  return run_BK[:, 0], second_B, limit_B


def judged(requests, rate_Q, stop):
  """p of the first two tokens of requests that are scheduled together, and
  their limits."""
  *tokens, limit_B = emit(requests, jnp.array(rate_Q), stop)
  p_VV = LAW.astype(np.float64)
  one = (p_VV[ANCHOR][:, None] * p_VV).reshape(-1)
  law, coded = np.ones(1), 0
  # By request of a group.
  pairs = np.stack(tokens, axis=-1).reshape(-1, requests, 2)
  for first, second in pairs.transpose(1, 2, 0):
    coded = coded * V * V + first * V + second
    law = np.outer(law, one).reshape(-1)
  return p_value(coded, law / law.sum()), np.asarray(limit_B)


def test_global_search_over_drawn_tokens_is_biased_and_early_stop_is_not():
  """The counterexample of appendix A: whether the first proposal is verified
  hangs on whether it is the token after which the drafter is sure."""
  p, limit_B = judged(1, DIP, stop=False)
  assert set(limit_B) == {0, 2}
  assert p < 1e-4
  p, limit_B = judged(1, DIP, stop=True)
  assert set(limit_B) == {0}
  assert p > 1e-4


@pytest.mark.parametrize('requests', (1, 2))
def test_early_stop_keeps_the_law_where_limits_hang_on_tokens(requests):
  p, limit_B = judged(requests, FALLING, stop=True)
  assert len(set(limit_B)) > 2
  assert p > 1e-4


def proposal(confidence, tokens=None):
  confidence_BS = jnp.array(confidence, jnp.float32)
  tokens = jnp.zeros(confidence_BS.shape, int) if tokens is None else tokens
  return Proposal(jnp.array(tokens), None, confidence_BS)


def test_confidences_are_calibrated_and_empty_slots_end_a_request():
  schedule = Schedule.fill(7, [1.0, 1.0, 1.0])
  counts = jnp.zeros((2, 3))
  draft = [[0.9, 0.9, 0.9], [0.8, 0.5, 0.5]]
  live = jnp.array([True, True])

  def limits(schedule, tokens=None, greedy=True):
    found = sched.limits(
      schedule, proposal(draft, tokens), counts, counts, live, greedy
    )
    return found.tolist()

  assert limits(schedule) == [3, 2]
  assert limits(Schedule.fill(6, [1.0, 1.0, 1.0])) == [3, 1]
  # Temperatures take the drafter's certainty away: 0.9 becomes 0.52.
  assert limits(Schedule.fill(6, [1.0, 25.0, 25.0])) == [2, 2]
  assert limits(schedule, [[5, -1, 5], [5, 5, 5]]) == [1, 3]


def test_without_calibration_earlier_rounds_decide():
  judged_BS = jnp.array([[40, 38, 30], [40, 4, 0]])
  passed_BS = jnp.array([[38, 30, 25], [4, 0, 0]])
  found = sched.limits(
    Schedule.fill(6), proposal(np.ones((2, 3))), judged_BS, passed_BS,
    jnp.array([True, True]), False,
  )  # fmt: skip
  assert found.tolist() == [3, 1]


def test_acceptance_goes_from_one_to_what_was_seen():
  none = np.zeros((3, 2))
  np.testing.assert_array_equal(sched.acceptance(none, none), np.ones((3, 2)))
  judged_BS = np.array([[4000, 2000], [0, 0]])
  found = sched.acceptance(judged_BS, judged_BS // 4)
  np.testing.assert_allclose(found, 0.25, atol=0.01)
  # A few rounds count for little beside those of the batch.
  judged_BS = np.array([[1000, 1000], [2, 0]])
  found = sched.acceptance(judged_BS, np.array([[1000, 500], [0, 0]]))
  np.testing.assert_allclose(found[1], [0.8, 0.5], atol=0.01)


def test_bad_schedules(refused):
  with refused('budget = 0, expected a whole number >= 1'):
    Schedule.fill(0)
  for bad in ([1.0, 0.0], [1.0, float('nan')]):
    with refused(
      f'temperature_S = {bad}, expected a positive number for each slot'
    ):
      Schedule.fill(4, bad)
