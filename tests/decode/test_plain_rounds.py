"""Plain rounds between drafting ones: the same tokens, a drafter kept ready."""

import itertools

import jax.numpy as jnp
import numpy as np

from spinejax.decode import round as rounds
from spinejax.decode.generate import start
from spinejax.decode.loop import prefill_chunk, run_rounds
from spinejax.decode.schedule import PLAIN, Schedule
from spinejax.drafters.loading import plain_model
from spinejax.verify.sampling import Sampling
from tests.compilations import COMPILATIONS
from tests.decode import toy
from tests.decode.toy import NEW, SLOTS

PROMPTS = toy.prompts(1, 9, 17, 4)
B, K = len(PROMPTS), SLOTS + 1


def prefilled(draft, new=NEW, stop_ids=toy.STOPS):
  """The state after prefill."""
  target = toy.target()
  state = start(target, draft, PROMPTS, new, stop_ids=stop_ids, capacity=128)
  params = rounds.Params(target.params, draft.params)
  return prefill_chunk(target.cfg, draft.drafter, params, state)


def run(draft, state, most, budget=None, temperature=0.0, schedule=None):
  target = toy.target()
  params = rounds.Params(target.params, draft.params)
  sampling = Sampling.make(B, temperature)
  return run_rounds(
    target.cfg, draft.drafter, params, state, sampling, jnp.int32(most),
    budget=budget, schedule=schedule,
  )  # fmt: skip


def emitted(state):
  rows = zip(state.tokens_BT, PROMPTS, state.length_B, strict=True)
  return [np.asarray(row)[len(p) : n].tolist() for row, p, n in rows]


TEMPERATURES = [0.0, 0.8, 0.0, 0.8]


def guessing():
  """A drafter that reads features and is often wrong."""
  known = emitted(run(plain_model(), prefilled(plain_model()), 99))
  return toy.oracle_model(PROMPTS, known, wrong_every=3, taps=(-1, 0))


def test_they_are_the_rounds_of_plain_decoding():
  draft, plain, temperature = guessing(), plain_model(), TEMPERATURES
  stops = tuple(emitted(run(plain, prefilled(plain), 99))[1][6:8])
  caps = [NEW, NEW, 7, 1]
  known = run(plain, prefilled(plain, new=caps, stop_ids=stops), 99,
              temperature=temperature)  # fmt: skip
  state = prefilled(draft, new=caps, stop_ids=stops)
  for most in (1, 3, 7, 99):
    before = state.rounds_B + 0
    state = run(draft, state, most, PLAIN, temperature)
    ran = int((state.rounds_B - before).max())
    assert ran == most or (ran < most and state.done_B.all())
    np.testing.assert_array_equal(
      state.draft_cache.length_B + state.pending_count_B, state.length_B - 1
    )
  assert emitted(state) == emitted(known)
  for field in ('length_B', 'done_B', 'rounds_B', 'anchor_B'):
    np.testing.assert_array_equal(getattr(state, field), getattr(known, field))
  kept_B = state.accepted_hist_BK @ jnp.arange(1, K + 1)
  np.testing.assert_array_equal(kept_B, state.length_B - state.prompt_length_B)
  assert not state.judged_BS.any()


def test_few_rounds_in_a_call_cost_no_more_extensions():
  """The draft cache takes rows in when K are waiting, not call by call."""
  state, read = prefilled(guessing()), []
  for _ in range(2 * K + 1):
    state = run(guessing(), state, 1, PLAIN)
    read.append((state.draft_cache.length_B - state.prompt_length_B + 1).max())
  assert [int(n) for n in read] == [0] * K + [K] * K + [2 * K]


def test_any_mixture_emits_the_same():
  """Plain, packed, scheduled and padded rounds in turn."""
  draft = guessing()
  known = emitted(run(plain_model(), prefilled(plain_model()), 99))
  schedule = Schedule.fill(2 * B, np.ones(SLOTS))
  ways = (dict(budget=PLAIN), dict(schedule=schedule), dict(budget=2 * B), {})
  state = prefilled(draft)
  for way in ways:
    state = run(draft, state, 2, **way)
  before = len(COMPILATIONS)
  for way in itertools.cycle(ways):
    state = run(draft, state, 2, **way)
    if state.done_B.all():
      break
  assert way is not ways[0]
  assert len(COMPILATIONS) == before
  assert emitted(state) == known
