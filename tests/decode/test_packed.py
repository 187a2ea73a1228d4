"""Packed verification: which rows are read, and that nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from spinejax.decode import round as rounds
from spinejax.decode.generate import start
from spinejax.decode.loop import run_rounds
from spinejax.decode.schedule import Schedule
from spinejax.sharding import AXES
from spinejax.target.packing import check_budget, fit, pack
from spinejax.verify.sampling import Sampling
from tests.decode import toy
from tests.decode.toy import NEW, SLOTS
from tests.verify.markov import Setting, exact_law, markov, p_value, play

PROMPTS = toy.prompts(1, 2, 9, 17, 4, 30)
DRAWS = 20_000
B, K = len(PROMPTS), SLOTS + 1
STEP = jax.jit(rounds.step, static_argnums=(0, 1), static_argnames=('budget',))
PREFILL = jax.jit(rounds.prefill, static_argnums=(0, 1, 4))


def cases(count=300, slots=6, requests=5):
  """Limits, and which requests are live."""
  rng = np.random.default_rng(0)
  limit_B = rng.integers(-2, slots + 3, (count, requests))
  return limit_B, rng.random((count, requests)) < 0.8


@pytest.mark.parametrize('budget', (5, 12, 35))
def test_rows_that_fit(budget):
  limits, lives = cases()
  wanted = np.where(lives, np.clip(limits, 0, 6) + 1, 0)
  rows = jax.vmap(lambda limit, live: fit(limit, live, 6, budget))
  rows = np.asarray(rows(jnp.array(limits), jnp.array(lives)))
  np.testing.assert_array_equal(rows.sum(1), np.minimum(wanted.sum(1), budget))
  assert (rows <= wanted).all() and (rows >= lives).all()
  for row, want in zip(rows, wanted, strict=True):
    # The longest are cut: to one length, and one more for the first of them.
    cut = row[row < want]
    if cut.size:
      assert row.max() <= cut.min() + 1
      assert (np.diff(cut) <= 0).all()


def test_packing_there_and_back():
  limits, lives = cases()
  x_BK = np.arange(5 * 7).reshape(5, 7)

  @jax.vmap
  def there_and_back(limit_B, live_B):
    rows_B = fit(limit_B, live_B, 6, 12)
    packing = pack(rows_B, 7, 12)
    packed_Q = packing.pack(jnp.array(x_BK))
    return rows_B, packed_Q, packing.unpack(packed_Q), packing.request_Q

  found = there_and_back(jnp.array(limits), jnp.array(lives))
  for rows_B, packed_Q, back_BK, request_Q in zip(
    *map(np.array, found), strict=True
  ):
    kept = np.arange(7) < rows_B[:, None]
    np.testing.assert_array_equal(packed_Q[: kept.sum()], x_BK[kept])
    np.testing.assert_array_equal(back_BK[kept], x_BK[kept])
    np.testing.assert_array_equal(request_Q, packed_Q // 7)


def prefilled(draft):
  """The state of PROMPTS after prefill, with weights."""
  target = toy.target()
  state = start(target, draft, PROMPTS, NEW, stop_ids=toy.STOPS, capacity=128)
  params = rounds.Params(target.params, draft.params)
  return params, PREFILL(target.cfg, draft.drafter, params, state, 32)


def run(draft, sampling, limit, budget):
  """All rounds until the end, with the limits that hold in each."""
  params, state = prefilled(draft)
  while not state.done_B.all():
    before, limit_B = state, jnp.broadcast_to(limit(state), (B,))
    # A request that is done takes no row of the others.
    done = STEP(
      toy.target().cfg, draft.drafter, params, state, sampling, limit_B,
      budget=budget,
    )  # fmt: skip
    yield before, done
    state = done.state


def ragged(state):
  return (state.length_B + jnp.arange(B)) % K


def test_packed_and_padded_are_equal():
  """Round for round: the very tokens, and what is kept for later."""
  guesses = toy.prompts(*[NEW] * B, seed=1)
  draft = toy.oracle_model(PROMPTS, guesses, taps=(-1, 0))
  sampling = Sampling.make(B, [0.0, 0.4, 0.8] * 2)
  padded = run(draft, sampling, ragged, None)
  packed = run(draft, sampling, ragged, budget=B * K - 3)
  for (_, a), (before, b) in zip(padded, packed, strict=True):
    live_B = ~np.asarray(before.done_B)
    np.testing.assert_array_equal(
      a.verdict.accepted_B[live_B], b.verdict.accepted_B[live_B]
    )
    for field in (
      'tokens_BT', 'length_B', 'done_B', 'anchor_B', 'pending_count_B',
      'accepted_hist_BK', 'rounds_B',
    ):  # fmt: skip
      np.testing.assert_array_equal(
        getattr(a.state, field), getattr(b.state, field), err_msg=field
      )
    at = np.arange(K) < np.asarray(b.state.pending_count_B)[:, None]
    np.testing.assert_allclose(
      a.state.pending_BKP[at], b.state.pending_BKP[at], atol=1e-4
    )
    valid_BT = np.arange(128) < np.asarray(a.state.length_B)[:, None] - 1
    for x, y in zip(
      a.state.target_cache.k, b.state.target_cache.k, strict=True
    ):
      x, y = (np.swapaxes(z, 1, 2)[valid_BT] for z in (x, y))
      np.testing.assert_allclose(x, y, atol=1e-4)


def decoded(draft, budget):
  """What is emitted when all rows that fit are verified, and the rounds."""
  params, state = prefilled(draft)
  state = run_rounds(
    toy.target().cfg, draft.drafter, params, state, Sampling.make(B),
    jnp.int32(99), budget=budget,
  )  # fmt: skip
  rows = zip(state.tokens_BT, PROMPTS, state.length_B, strict=True)
  answers = [np.asarray(row)[len(p) : n].tolist() for row, p, n in rows]
  return answers, int(state.rounds_B.sum())


def test_what_does_not_fit_is_cut_and_the_output_stays():
  blind = toy.oracle_model(PROMPTS, [[]] * B)
  answers, most = decoded(blind, B)
  knowing = toy.oracle_model(PROMPTS, answers)
  last = most
  for budget in (B, B + 5, 3 * B):
    found, took = decoded(knowing, budget)
    assert found == answers
    assert took == last if budget == B else took < last
    last = took


def test_scheduled_sampling_keeps_the_law():
  """Two rows of three, of requests that sample differently."""
  schedule = Schedule.fill(2 * DRAWS, [1.0, 1.0])
  groups = (Setting(temperature=0.7, top_k=5), Setting(temperature=1.3))
  outcomes = play(markov('sparse'), groups, DRAWS, schedule=schedule)
  for setting, got in zip(groups, outcomes, strict=True):
    assert p_value(got, exact_law(setting)) > 1e-4


def test_rows_of_requests_on_several_devices_are_refused(refused):
  auto = (AxisType.Auto,) * 2
  check_budget(4, 5, 8, AbstractMesh((1, 4), AXES, auto))
  with refused('budget = 8: requests lie on the mesh axis data=2, over which '
               'rows cannot be packed'):  # fmt: skip
    check_budget(4, 5, 8, AbstractMesh((2, 1), AXES, auto))


@pytest.mark.parametrize('budget', (B - 1, B * K + 1, 0, True, 7.0))
def test_bad_budgets(budget, refused):
  draft = toy.dspine_model()
  params, state = prefilled(draft)
  with refused(f'budget = {budget!r}, expected {B}..{B * K}: {B} requests of '
               f'{K} rows at most'):  # fmt: skip
    rounds.step(
      toy.target().cfg, draft.drafter, params, state, Sampling.make(B),
      budget=budget,
    )  # fmt: skip
