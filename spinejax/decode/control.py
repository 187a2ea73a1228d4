"""Whether to draft, and how much to verify: the host's side of the schedule.

A budget is a compiled program, and drafting has to be paid for before anything
is known of a round. So both are decided between calls of `run_rounds`, from
the acceptance of earlier rounds and measured costs. That is exact for any law:
nothing of a round decides about itself.

Where speculation does not pay, plain rounds run (`round.plain`), which keep
the draft cache fed, so that going back costs nothing. Acceptance cannot be
seen then: drafting is tried anew for a few rounds, after pauses that double
each time it fails (the cost of trying goes to less than a percent). When fewer
or more requests are live than before, the next decision sees it.

  control = begin(table, slots, live)
  while ...:
    state = run_rounds(..., max_rounds=control.rounds, budget=control.budget,
                       schedule=...)  # not with PLAIN
    control = update(table, control, judged_S, passed_S, ran, live)

`decode.scheduler` does this for an engine.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from spinejax.decode.cost import BudgetTable
from spinejax.decode.schedule import PLAIN, acceptance
from spinejax.errors import InputError

# By how much another way to decode must be better than the present one.
_MARGIN = 0.03
# Rounds between decisions; of a try, so many that a few dozen are counted.
_ROUNDS, _TRY, _COUNTED = 16, 4, 64
# Decisions between tries: at first, and at most.
_PAUSE, _LONGEST = 4, 256
# What is left of the weight of counts after so many rounds: half after 64. With
# less, a few dozen tokens that are hard to guess end what pays on the whole.
_KEPT = 0.84


def tokens_a_round(
  survival_S: Sequence[float], live: int, budget: int
) -> float:
  """tau of a round that verifies `budget` rows of `live` requests.

  Args:
    survival_S: P(proposals 1..j all stand), of the average request.
    live: requests.
    budget: rows in all; `PLAIN` emits one token each.
  """
  if budget == PLAIN:
    return float(live)
  # Slot by slot, as far as the rows go round.
  slots, rest = divmod(budget - live, live)
  verified = live * sum(survival_S[:slots])
  if slots < len(survival_S):
    verified += rest * survival_S[slots]
  return float(live + verified)


def choose(
  table: BudgetTable,
  survival_S: Sequence[float],
  live: int,
  current: int | None = None,
) -> int:
  """The budget that emits most tokens a second (or joule), or `PLAIN`.

  Args:
    table: measured costs.
    survival_S: see `tokens_a_round`; of earlier rounds.
    live: requests that are decoded, at most the table's batch.
    current: what runs now. Something else must be better by 3 %, except that
      drafting is given up as soon as it does not pay.

  Raises:
    InputError: there are more requests than the table is for, or none.
  """
  if not 1 <= live <= table.batch:
    raise InputError(f'live = {live}, expected 1..{table.batch}')
  plain = tokens_a_round(survival_S, live, PLAIN) / table.plain
  rates = {PLAIN: plain} | _rates(table, survival_S, live)
  best = max(rates, key=rates.get)
  if current not in rates or best == PLAIN:
    return best
  return best if rates[best] > (1 + _MARGIN) * rates[current] else current


def _rates(table: BudgetTable, survival_S, live: int) -> dict[int, float]:
  """Tokens by what they cost, by the budgets that draft, ascending.

  Those that have rows for the anchors only are left out: they emit what plain
  rounds do, and nothing could be learnt of the drafter in them.
  """
  return {
    budget: tokens_a_round(survival_S, live, budget) / cost
    for budget, cost in sorted(table.drafted.items())
    if budget > live
  }


@dataclasses.dataclass(frozen=True)
class Control:
  """What runs, and what is known; see `begin` and `update`.

  Attributes:
    budget: of the next rounds; `PLAIN` drafts nothing.
    rounds: how many of them until the next decision.
    ran: of them, those that have been run.
    judged_S, passed_S: proposals judged and accepted, by slot; older ones
      count for less.
    pause: decisions for which plain decoding stays, once it has begun; 0
      while drafting pays.
    left: of them, those still to come.
  """

  budget: int
  rounds: int
  judged_S: tuple[float, ...]
  passed_S: tuple[float, ...]
  pause: int = 0
  left: int = 0
  ran: int = 0

  @property
  def survival_S(self) -> list[float]:
    """P(proposals 1..j all stand), of the average request."""
    counts = np.array([self.judged_S]), np.array([self.passed_S])
    return np.cumprod(acceptance(*counts)[0]).tolist()


def begin(
  table: BudgetTable,
  slots: int,
  live: int,
  survival_S: Sequence[float] | None = None,
) -> Control:
  """Tries the drafter, of which nothing is known, or no longer.

  Args:
    slots: proposals of a request, S.
    live: requests.
    survival_S: as it was, by which the budget is chosen that would do best
      now: if little was accepted, one in which to see it costs little. None:
      as if all were.
  """
  survival_S = [1.0] * slots if survival_S is None else survival_S
  rates = _rates(table, survival_S, live)
  rounds = min(max(_TRY, -(-_COUNTED // live)), _ROUNDS)
  unknown = (0.0,) * slots
  return Control(max(rates, key=rates.get), rounds, unknown, unknown)


def update(
  table: BudgetTable,
  control: Control,
  judged_S: Sequence[int],
  passed_S: Sequence[int],
  ran: int,
  live: int,
) -> Control:
  """What to do after some rounds: decides when there were enough.

  At once, if the table has not the budget that ran: it may be another one each
  time, as fewer or more requests are compiled for.

  Args:
    judged_S, passed_S: what was added to `DecodeState.judged_BS` and
      `passed_BS` by these rounds, summed over the requests.
    ran: rounds since the last call.
    live: requests that are decoded next; with none nothing changes.
  """
  if live == 0:
    return control
  if control.budget != PLAIN:
    kept = _KEPT ** (ran / _ROUNDS)
    judged, passed = (
      tuple((kept * np.array(old) + np.asarray(new)).tolist())
      for old, new in (
        (control.judged_S, judged_S), (control.passed_S, passed_S),
      )
    )  # fmt: skip
    control = dataclasses.replace(control, judged_S=judged, passed_S=passed)
  there = control.budget == PLAIN or control.budget in table.drafted
  ran += control.ran
  if there and ran < control.rounds:
    return dataclasses.replace(control, ran=ran)
  current = control.budget if there else None
  budget = choose(table, control.survival_S, live, current)
  if budget != PLAIN:
    return dataclasses.replace(
      control, budget=budget, rounds=_ROUNDS, ran=0, pause=0, left=0
    )
  if control.budget == PLAIN:
    if control.left <= 1:
      # What was seen before the pause may be true no longer.
      known_S = control.survival_S
      fresh = begin(table, len(known_S), live, known_S)
      return dataclasses.replace(fresh, pause=control.pause)
    return dataclasses.replace(control, ran=0, left=control.left - 1)
  pause = min(2 * control.pause, _LONGEST) or _PAUSE
  return dataclasses.replace(
    control, budget=PLAIN, rounds=_ROUNDS, ran=0, pause=pause, left=pause
  )
