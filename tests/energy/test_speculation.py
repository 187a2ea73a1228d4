"""The law of rounds: coefficients, limits, and where it says that they pay."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spinejax.decode.control import begin, choose, update
from spinejax.decode.forced import survival_of_mean
from spinejax.decode.schedule import PLAIN
from spinejax.energy import speculation as spec
from spinejax.energy.fit import Split, least_squares, predict_held_out
from spinejax.energy.speculation import Rounds, Speculation

BATCHES, CONTEXTS, ROWS = (1, 8, 32, 128, 256), (128, 1024, 4096), 16
# W, k, n, then W_d, k_d, n_d, then a, and m if rows are hidden.
COEF = [3.0, 2e-5, 1e-2, 0.5, 3e-6, 2e-3, 4e-5]


def grid(drafters=('plain', 'd'), rows=ROWS):
  places = itertools.product(drafters, BATCHES, CONTEXTS)
  drafter, batch, context = zip(*places, strict=True)
  rows_N = np.where(np.array(drafter) == 'plain', 1, rows)
  return Rounds.of(drafter, batch, context, rows_N)


def law_of(coef=COEF, hidden=None, drafters=('d',)):
  law = Speculation(drafters, hidden)
  law.coef_ = np.array(coef, float)
  assert len(law.names) == len(coef)
  return law


def test_the_law_by_hand():
  law = law_of([3, 0.5, 2, 1, 0.25, 0.5, 0.75, 7], hidden=20)
  read = 3 + 0.5 * 4 * 10 + 0.75 * 10
  plain, wide = read + 2 * 4, read + 2 * 24 + 7 * 4
  own = 1 + 0.25 * 4 * 10 + 0.5 * 24
  rounds = Rounds.of(['plain', 'plain', 'd'], 4, 10, [1, 6, 6])
  assert law.predict(rounds).tolist() == [plain, wide, wide + own]
  # Packed, the target reads fewer rows; the drafter has as many as ever.
  packed = Rounds.of('d', 4, 10, 6, verified=9)
  assert law.predict(packed).tolist() == [read + 18 + own]
  # Plain decoding is the law without a drafter.
  alone = law_of([3, 0.5, 2, 0.75, 7], hidden=20, drafters=())
  steps = grid(('plain',))
  np.testing.assert_array_equal(alone.predict(steps), law.predict(steps))
  np.testing.assert_array_equal(law.predict(rounds.plain), [plain] * 3)
  np.testing.assert_allclose(
    spec.per_token(law, rounds, [1, 1, 3]),
    [plain / 4, wide / 4, (wide + own) / 12],
  )


@pytest.mark.parametrize('hidden', (None, 128.0))
def test_known_coefficients_are_recovered(hidden):
  coef = COEF if hidden is None else [*COEF, 5e-3]
  truth, rounds = law_of(coef, hidden), grid()
  found = Speculation(['d']).fit(rounds, truth.predict(rounds))
  assert found.hidden == hidden
  np.testing.assert_allclose(found.coef_, coef, rtol=1e-6)
  # What was not fitted is predicted, place by place.
  cost_N = truth.predict(rounds) * np.exp(
    0.02 * np.random.default_rng(0).normal(size=len(rounds))
  )
  splits = []
  for place in itertools.product(BATCHES, CONTEXTS):
    at_N = (rounds.batch_N == place[0]) & (rounds.context_N == place[1])
    splits.append(Split(str(place), ~at_N, at_N))
  held_N, there_N = predict_held_out(Speculation(['d']), rounds, cost_N, splits)
  assert there_N.all() and 0.005 < np.abs(held_N / cost_N - 1).mean() < 0.03


def test_products_that_hide_behind_the_weights():
  """A roofline: what takes longer, reading weights or multiplying."""
  rounds = grid()
  bound_N = np.maximum(3.0, 0.02 * rounds.verified_N)
  cost_N = bound_N + 2e-5 * rounds.batch_N * rounds.context_N
  added, hinged = Speculation(['d']), Speculation(['d']).fit(rounds, cost_N)
  best = np.abs(hinged.predict(rounds) / cost_N - 1).max()
  added.coef_ = least_squares(added.columns(rounds), cost_N, added.names)
  worse = np.abs(added.predict(rounds) / cost_N - 1).max()
  assert 90 < hinged.hidden < 256 and best < 0.12 < 0.2 < worse


def test_the_published_example():
  """Energy.md's reading of SIMPLE at saturation, Llama 3.1 8B on an H100."""
  law = law_of([0, 3.41e-5, 0.0249, 0, 0, 0, 0])
  for rows, tokens, context in ((8, 3, 1825), (8, 2, 4381), (4, 2.5, 730)):
    found = spec.contexts_that_save(
      law, 'd', batch=1000, rows=rows, tokens=tokens
    )
    assert found == (pytest.approx(context, abs=1), np.inf)
  long, short = (Rounds.of('d', 1, c, 8) for c in (68e3, 512))
  for rounds, plain, drafted in ((long, 2.34, 0.84), (short, 0.042, 0.073)):
    assert law.predict(rounds.plain)[0] == pytest.approx(plain, rel=0.01)
    assert spec.per_token(law, rounds, 3)[0] == pytest.approx(drafted, rel=0.02)


positive = st.floats(1e-3, 1e3)
coefs = st.tuples(
  positive, st.floats(1e-7, 1e-3), st.floats(1e-5, 1), st.floats(0, 10),
  st.floats(0, 1e-4), st.floats(0, 1e-2), st.floats(0, 1e-3), st.floats(0, 1),
)  # fmt: skip
places = st.tuples(
  st.floats(1, 512), st.floats(0, 1e5), st.integers(2, 16), st.floats(1, 16)
)


@settings(max_examples=150, deadline=None)
@given(coefs, st.sampled_from([16.0, 181.0]), places)
def test_break_evens_are_where_the_costs_meet(coef, hidden, place):
  law, (batch, context, rows, tokens) = law_of(coef, hidden), place
  tokens = min(tokens, rows)

  def saves(b, c):
    return spec.saving(law, Rounds.of('d', b, c, rows), tokens)[0]

  found = spec.contexts_that_save(
    law, 'd', batch=batch, rows=rows, tokens=tokens
  )
  check([found] if found else [], lambda c: saves(batch, c), 0.0, context)
  ranges = spec.batches_that_save(
    law, 'd', context=context, rows=rows, tokens=tokens
  )
  check(ranges, lambda b: saves(b, context), 1.0, batch)
  # At the break-even of tokens and of acceptance nothing is saved or lost.
  rounds = Rounds.of('d', batch, context, rows)
  (even,) = spec.break_even_tokens(law, rounds)
  assert spec.saving(law, rounds, even)[0] == pytest.approx(0, abs=1e-9)
  assert even >= 1  # a round is never cheaper than a step
  (each,) = spec.break_even_acceptance(law, rounds)
  if even > rows:
    assert np.isnan(each)
  else:
    assert 1 + sum(each**j for j in range(1, rows)) == pytest.approx(even)
    assert sum(survival_of_mean(even, rows - 1)) == pytest.approx(even - 1)


def check(ranges, saves, least, at):
  """Ends inside are roots; inside is a saving, outside is none."""
  for low, high in ranges:
    assert least <= low < high
    for end in (low, high):
      if least < end < 1e9:
        assert saves(end) == pytest.approx(0, abs=1e-6)
  inside = any(low <= at <= high for low, high in ranges)
  if abs(saves(at)) > 1e-6:
    assert inside == (saves(at) > 0)


def test_limits(refused):
  law = law_of()
  # One request: weights dominate, and everything but a useless draft saves.
  (low, high), *rest = spec.batches_that_save(
    law, 'd', context=128, rows=ROWS, tokens=4
  )
  assert low == 1 and 1 < high < 256 and not rest
  # Of more requests than that, those with long contexts.
  start, end = spec.contexts_that_save(
    law, 'd', batch=2 * high, rows=ROWS, tokens=4
  )
  assert 128 < start and end == np.inf
  # A drafter that reads as much as it saves of the target's keys and values.
  heavy = law_of([3.0, 2e-5, 1e-2, 0.5, 7e-5, 2e-3, 0])
  below = spec.contexts_that_save(heavy, 'd', batch=4, rows=ROWS, tokens=4)
  assert below[0] == 0 and 0 < below[1] < np.inf
  # One token a round never saves.
  none = dict(rows=ROWS, tokens=1.0)
  assert spec.contexts_that_save(law, 'd', batch=1, **none) is None
  assert spec.batches_that_save(law, 'd', context=1e6, **none) == []
  with refused("drafter 'e', expected one of plain, d"):
    law.predict(Rounds.of('e', 1, 1, 4))
  with refused('the law has no coefficients: call fit first'):
    Speculation(['d']).predict(grid())
  with refused('column d weights is zero in every cell: drop its term'):
    Speculation(['d']).fit(grid(('plain',)), np.ones(15))


# Time and joules of one machine. Rows hide behind the reading of weights in
# time, but each of their products draws power; so at a middling batch a round
# is quick, and dear.
TIME = law_of([4.0, 3e-5, 0.002, 0.5, 3e-6, 0.001, 0, 0.02], hidden=256)
JOULES = law_of([1.6, 1.8e-5, 0.012, 0.2, 2e-6, 0.001, 0])


def tables(batch, context, rows=8):
  budgets = [round(batch * rows * share) for share in (0.25, 0.5, 1.0)]
  place = dict(batch=batch, context=context, rows=rows, budgets=budgets)
  return [
    spec.budget_table(law, 'd', unit=unit, **place)
    for law, unit in ((TIME, 'ms'), (JOULES, 'joules'))
  ]


def test_a_table_of_the_law_is_what_the_law_says():
  table = tables(16, 512)[1]
  assert table.unit == 'joules' and list(table.drafted) == [32, 64, 128]
  assert table.plain == JOULES.predict(Rounds.of('plain', 16, 512, 1))[0]
  whole = JOULES.predict(Rounds.of('d', 16, 512, 8))[0]
  assert table.drafted[128] == pytest.approx(whole)
  rows = (table.drafted[64] - table.drafted[32]) / 32
  assert rows == pytest.approx(JOULES.coef_[2])


def test_joules_change_the_decision_where_they_should():
  survival = survival_of_mean(2.5, 7)
  chosen = {}
  for batch, context in ((1, 512), (32, 256), (32, 65536), (256, 256)):
    chosen[batch, context] = tuple(
      choose(table, survival, batch) for table in tables(batch, context)
    )
  # One request, and one of long contexts: both draft. Many short ones: none.
  for both in ((1, 512), (32, 65536)):
    assert PLAIN not in chosen[both]
  assert chosen[256, 256] == (PLAIN, PLAIN)
  # Between them rows are free in time, not in joules: less is verified.
  quick, thrifty = chosen[32, 256]
  assert quick == 256 and thrifty < quick
  # That is the best that each can do, and worse by the other's measure.
  cost = [t.drafted | {PLAIN: t.plain} for t in tables(32, 256)]
  tokens = {b: 32.0 for b in (PLAIN,)}
  for budget in (64, 128, 256):
    slots = budget // 32 - 1
    tokens[budget] = 32 * (1 + sum(survival[:slots]))
  per_joule = {b: tokens[b] / cost[1][b] for b in tokens}
  per_ms = {b: tokens[b] / cost[0][b] for b in tokens}
  assert per_joule[thrifty] == max(per_joule.values()) > per_joule[quick]
  assert per_ms[quick] == max(per_ms.values()) > per_ms[thrifty]


def test_the_control_settles_on_what_its_costs_say():
  """The same acceptance, round after round, judged in ms and in joules."""
  survival, batch, settled = survival_of_mean(1.5, 7), 32, []
  rng = np.random.default_rng(0)
  for table in tables(batch, 256):
    control = begin(table, 7, batch)
    for _ in range(6):
      judged_S, passed_S = np.zeros(7), np.zeros(7)
      for _ in range(control.rounds if control.budget else 0):
        accepted_B = (rng.random((batch, 1)) < survival).sum(1)
        slots = control.budget // batch - 1
        for accepted in np.minimum(accepted_B, slots):
          judged_S[: min(accepted + 1, slots)] += 1
          passed_S[:accepted] += 1
      control = update(
        table, control, judged_S, passed_S, control.rounds, batch
      )
    settled.append(control.budget)
  assert settled[0] != PLAIN and settled[1] == PLAIN
