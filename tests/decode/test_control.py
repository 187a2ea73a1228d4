"""Which budget is chosen, and what a policy that cannot see costs."""

import dataclasses

import numpy as np
import pytest

from spinejax.decode.control import (
  Control,
  begin,
  choose,
  tokens_a_round,
  update,
)
from spinejax.decode.cost import BudgetTable
from spinejax.decode.schedule import PLAIN

SURVIVAL = [0.8, 0.6, 0.4]
# A drafting round of 8 requests: 10 to draft, and to verify by the row.
TABLE = BudgetTable(8, 20.0, {8 * k: 30.0 + 2.5 * k for k in (2, 3, 4)})


def test_tokens_a_round():
  found = [tokens_a_round(SURVIVAL, 2, rows) for rows in (0, 2, 3, 4, 7, 8, 9)]
  # Row by row, a slot of all requests before the next.
  assert found == pytest.approx([2, 2, 2.8, 3.6, 5.2, 5.6, 5.6])


@pytest.mark.parametrize(
  'survival, live, best',
  (
    (SURVIVAL, 8, 32),
    ([0.0, 0.0, 0.0], 8, PLAIN),
    ([0.9, 0.05, 0.0], 8, 16),
    (SURVIVAL, 2, 16),  # rows that nobody fills
    ([0.5, 0.25, 0.1], 8, PLAIN),
  ),
)
def test_choose(survival, live, best):
  rates = {
    budget: tokens_a_round(survival, live, budget) / cost
    for budget, cost in ((PLAIN, TABLE.plain), *TABLE.drafted.items())
  }
  assert choose(TABLE, survival, live) == best == max(rates, key=rates.get)


def test_choose_does_not_follow_every_breath():
  level = BudgetTable(1, 10.0, {2: 16.0, 4: 20.0})
  by = 1.02  # less than the margin
  assert choose(level, [1.0], 1, current=2) == 2
  assert choose(level, [0.6 * by], 1, current=2) == 2
  assert choose(level, [0.6 * by], 1, current=PLAIN) == PLAIN
  assert choose(level, [0.6 * 1.1], 1, current=PLAIN) == 2
  # It is given up as soon as it does not pay.
  assert choose(level, [0.59], 1, current=2) == PLAIN
  two = [0.7, 0.45, 0.0]
  assert choose(level, two, 1) == 4
  assert choose(level, two, 1, current=2) == 2


def test_bad_tables(refused):
  with refused("unit = 's', expected ms or joules"):
    BudgetTable(1, 1.0, {1: 1.0}, 's')
  with refused('drafted is empty, expected at least one budget'):
    BudgetTable(1, 1.0, {})
  with refused(
    'drafted has a budget of 3, expected at least a row for each of 4 requests'
  ):
    BudgetTable(4, 1.0, {3: 1.0})
  with refused(
    'drafted has no budget beyond a row for each of 4 requests: nothing that '
    'is drafted would be verified'
  ):
    BudgetTable(4, 1.0, {4: 1.0})
  with refused('a cost of nan, expected a positive number'):
    BudgetTable(1, float('nan'), {1: 1.0})
  for live in (0, 9):
    with refused(f'live = {live}, expected 1..8'):
      choose(TABLE, SURVIVAL, live)


def simulate(acceptance, live, rounds, seed=0, table=TABLE):
  """Tokens and cost of a policy that meets a drafter of that acceptance.

  Args:
    acceptance: of every slot, at each round.
    live: requests, at each round.
  """
  rng = np.random.default_rng(seed)
  state, at, tokens, cost = begin(table, 3, live(0)), 0, 0, 0.0
  budgets = []
  while at < rounds:
    judged_S, passed_S = np.zeros(3, int), np.zeros(3, int)
    # In several calls, and beyond what was decided on: as turns have it.
    ran = int(rng.integers(1, 12))
    for _ in range(ran):
      n, budget = live(at), state.budget
      budgets.append(budget)
      cost += table.plain if budget == PLAIN else table.drafted[budget]
      tokens += n
      if budget != PLAIN:
        verified = np.clip((budget - n) // n, 0, 3)
        for _ in range(n):
          for slot in range(verified):
            judged_S[slot] += 1
            if rng.random() >= acceptance(at):
              break
            passed_S[slot] += 1
            tokens += 1
      at += 1
    state = update(table, state, judged_S, passed_S, ran, live(at))
  return tokens / cost, budgets


def test_a_useless_drafter_costs_next_to_nothing():
  rate, budgets = simulate(lambda at: 0.05, lambda at: 8, 20_000)
  plain = 8 / TABLE.plain
  assert rate > 0.99 * plain
  # It is tried again all the same.
  assert 3 < sum(b != PLAIN for b in budgets[1000:]) < 200


def test_a_useful_drafter_is_used_throughout():
  rate, budgets = simulate(lambda at: 0.8, lambda at: 8, 2000)
  best = tokens_a_round(0.8 ** np.arange(1, 4), 8, 32) / TABLE.drafted[32]
  assert PLAIN not in budgets
  assert rate == pytest.approx(best, rel=0.02)


def test_it_follows_the_acceptance():
  _, budgets = simulate(
    lambda at: 0.05 if at < 1000 else 0.9, lambda at: 8, 4000
  )
  assert budgets[500:1000].count(PLAIN) > 470
  assert budgets[3000:].count(PLAIN) == 0


def test_a_budget_without_proposals_teaches_nothing():
  """The cheapest one, but what drafting is worth could never be seen in it."""
  table = BudgetTable(8, 20.0, {8: 21.0} | TABLE.drafted)
  _, budgets = simulate(
    lambda at: 0.05 if at < 1000 else 0.9, lambda at: 8, 4000, table=table
  )
  assert budgets[3000:].count(PLAIN) == 0 and 8 not in budgets
  # Of fewer requests it has some, and when more have come it is left.
  assert choose(table, SURVIVAL, 2) == 8
  assert choose(table, SURVIVAL, 8, current=8) == 32
  assert choose(table, [0.0] * 3, 8, current=8) == PLAIN


def test_a_passage_that_is_hard_to_guess_changes_nothing():
  """Acceptance that goes up and down, and pays on the whole."""
  table = BudgetTable(8, 20.0, {32: 40.0})

  def acceptance(at):
    return 0.3 if at // 30 % 2 else 0.9

  rate, budgets = simulate(acceptance, lambda at: 8, 2000, table=table)
  assert budgets.count(PLAIN) < 100
  assert rate > 1.15 * 8 / table.plain


def test_a_new_try_is_cheap():
  """It verifies what would do best by what is known, which is little."""
  few = (900.0, 90.0, 9.0), (90.0, 9.0, 0.9)
  state = Control(PLAIN, 16, *few, pause=64, left=1)
  after = update(TABLE, state, [0] * 3, [0] * 3, 16, live=8)
  assert (after.budget, after.rounds, after.pause) == (16, 8, 64)
  assert begin(TABLE, 3, 8).budget == 32


def test_it_follows_the_load_at_once():
  """Of eight requests no budget pays at this acceptance, of two one does."""
  counts = (1000.0, 500.0, 250.0), (500.0, 250.0, 125.0)
  state = Control(PLAIN, 16, *counts, pause=64, left=60)
  same = update(TABLE, state, [0] * 3, [0] * 3, 16, live=8)
  assert same == dataclasses.replace(state, left=59)
  fewer = update(TABLE, state, [0] * 3, [0] * 3, 16, live=2)
  assert (fewer.budget, fewer.pause) == (16, 0)


def test_without_requests_nothing_is_decided():
  state = begin(TABLE, 3, 8)
  assert update(TABLE, state, [9, 9, 9], [0, 0, 0], 9, live=0) is state


def test_it_decides_after_enough_rounds():
  state = begin(TABLE, 3, 8)
  assert (state.budget, state.rounds) == (32, 8)
  state = update(TABLE, state, [9, 0, 0], [0, 0, 0], 7, live=8)
  assert (state.budget, state.ran) == (32, 7)
  after = update(TABLE, state, [9, 0, 0], [0, 0, 0], 1, live=8)
  assert (after.budget, after.ran) == (PLAIN, 0)
  # What was counted is kept, and older counts count for less.
  assert 17 < after.judged_S[0] < 18


def test_another_table_is_decided_on_at_once():
  counts = (100.0,) * 3, (99.0,) * 3
  state = Control(32, 16, *counts)
  other = BudgetTable(2, 20.0, {4: 25.0, 8: 30.0})
  after = update(other, state, [0] * 3, [0] * 3, 1, live=2)
  assert (after.budget, after.rounds, after.ran) == (8, 16, 0)
  # Plain rounds are the same in all of them.
  plain = dataclasses.replace(state, budget=PLAIN)
  assert update(other, plain, [0] * 3, [0] * 3, 1, live=2).budget == PLAIN
