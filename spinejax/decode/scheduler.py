"""What the rounds of an engine verify: chosen between turns, by what pays.

Padded rounds, which verify every proposal, packed ones of a few budgets, and
plain ones, which draft nothing: all are compiled beforehand, for each number of
rows that the engine's rounds are compiled for. What they cost is measured then,
with the engine's own programs; what they are worth is known from the proposals
that were accepted of late. `control` chooses, and `Scheduler` keeps for it what
an engine knows.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from spinejax.decode import control
from spinejax.decode.batch import Batch, News, Settings
from spinejax.decode.cost import BudgetTable, budgets_of
from spinejax.decode.schedule import PLAIN, Schedule
from spinejax.decode.ticket import Request
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.sharding import DATA, shard
from spinejax.target.loading import Target
from spinejax.target.packing import check_budget

# Calls of every program when costs are measured; the least of each counts.
_CALLS = 3
_SHARES = 0.25, 0.5


@dataclasses.dataclass(frozen=True)
class Scheduling:
  """What an engine may choose from, beside padded rounds and plain ones.

  Attributes:
    shares: of the rows of padded rounds, those that packed ones verify. On a
      mesh that splits requests there can be none. None: a quarter and a half,
      where there can be.
    temperature_S: calibration of the drafter's confidences, by which packed
      rounds choose what they verify; see `Schedule`.
    reproducible: a sampled answer depends on its seed alone: while one is
      decoded, rounds are padded. Otherwise its law is the target's, but which
      tokens are drawn depends on what else is served.
    tables: costs, one table for each number of rows that rounds are compiled
      for; their budgets take the place of `shares`, and nothing is measured.
  """

  shares: tuple[float, ...] | None = None
  temperature_S: Sequence[float] | None = None
  reproducible: bool = False
  tables: Sequence[BudgetTable] = ()

  def __post_init__(self):
    for share in self.shares or ():
      if not 0 < share < 1:
        raise InputError(f'shares has {share!r}, expected between 0 and 1')


class Scheduler:
  """Chooses how an engine's next rounds run.

  Attributes:
    ways: `how` of `Batch.rounds` by its width and the budget.
    costs: tables by width and whether all requests are greedy, as far as they
      are known.
    control: the last decision, and what it rests on; None before the first.
  """

  def __init__(
    self,
    scheduling: Scheduling,
    target: Target,
    draft: DraftModel,
    settings: Settings,
  ):
    """Makes what the programs are given; measures nothing.

    Raises:
      InputError: the drafter proposes nothing, a budget cannot be packed, a
        table is missing, or temperatures are not those of the drafter's slots.
    """
    self._slots = slots = draft.drafter.slots
    if not slots:
      raise InputError(
        f'drafter {draft.drafter.name} proposes nothing: there is nothing to '
        'schedule'
      )
    given = scheduling.temperature_S
    if given is not None and len(given) != slots:
      raise InputError(
        f'temperature_S has {len(given)} numbers, expected {slots}: one for '
        'each slot of the drafter'
      )
    self._scheduling, self._settings = scheduling, settings
    self._vocab = target.cfg.vocab
    self._tables = {table.batch: table for table in scheduling.tables}
    shares = scheduling.shares
    if shares is None:
      split = target.mesh is not None and target.mesh.shape[DATA] > 1
      shares = () if split else _SHARES
      logging.info('packed rounds verify %s of the rows', shares or 'no share')
    self.ways: dict[int, dict[int, Mapping]] = {}
    for width in (*settings.widths, settings.slots):
      budgets = budgets_of(draft, width, shares)
      if self._tables:
        if width not in self._tables:
          raise InputError(
            f'tables has none for {width} requests; rounds are compiled for '
            f'{", ".join(map(str, (*settings.widths, settings.slots)))}'
          )
        budgets = list(self._tables[width].drafted)
      ways = {PLAIN: {'budget': PLAIN}}
      most = width * (slots + 1)
      for budget in budgets:
        if budget != most:
          check_budget(width, slots + 1, budget, target.mesh)
          schedule = Schedule.fill(budget, given)
          ways[budget] = {'schedule': shard(schedule, target.mesh)}
      # All rows: padded, which nothing has to be gathered for.
      self.ways[width] = ways | {most: {}}
    self.costs: dict[tuple[int, bool], BudgetTable] = {}
    for width, table in self._tables.items():
      self.costs[width, True] = self.costs[width, False] = table
    self.control: control.Control | None = None
    self._seen_BS = np.zeros((2, settings.slots, slots), np.int64)
    self._forget()

  def measure(self, batch: Batch, sampled: bool) -> None:
    """Times all programs, which must have been compiled; ends all requests.

    Args:
      sampled: also those for temperatures above 0.
    """
    if self._tables:
      return
    fill = _reader(batch, self._settings, self._slots + 1, self._vocab)
    for temperature in (0.0, 1.0) if sampled else (0.0,):
      batch.law(0, temperature, 0, 1.0)
      for width, ways in self.ways.items():
        fill(width)
        took = {budget: [] for budget in ways}
        for _ in range(_CALLS + 1):  # the first one warms up
          for budget, how in ways.items():
            fill(width)
            took[budget].append(self._round_ms(batch, width, how))
        least = {budget: min(times[1:]) for budget, times in took.items()}
        table = BudgetTable(width, least.pop(PLAIN), least)
        self.costs[width, not temperature] = table
    batch.law(0, 0.0, 0, 1.0)
    batch.halt(range(self._settings.slots))

  def _round_ms(self, batch: Batch, width: int, how: Mapping) -> float:
    # As long as it takes until a plain round has to feed the drafter, too.
    rounds = max(self._settings.rounds or 0, self._slots + 2)
    seen_B = np.zeros(self._settings.slots, np.int32)
    # They run whether or not requests have ended: more than all cannot have.
    batch.rounds(width, 0, width + 1, seen_B)  # waits for what went before
    began = time.perf_counter()
    batch.rounds(width, rounds, width + 1, seen_B, how)
    return 1e3 * (time.perf_counter() - began) / rounds

  def choose(
    self, width: int, live: int, greedy: bool
  ) -> tuple[int, int | None]:
    """The budget of the next rounds, and how many of them at most.

    Before costs are known, and where sampled answers have to be reproducible,
    all is drafted and verified.

    Args:
      width: requests that they are compiled for.
      live: requests that are decoded.
      greedy: none of them is sampled.
    """
    table = self.costs.get((width, greedy))
    if table is None or (self._scheduling.reproducible and not greedy):
      self._forget()
      return width * (self._slots + 1), None
    if self.control is None:
      self.control = control.begin(table, self._slots, live)
    else:
      self.control = control.update(
        table, self.control, *self._new_S, self._ran, live
      )
    self._forget()
    return self.control.budget, self.control.rounds

  def seat(self, slot: int) -> None:
    """A new request has come into a slot; its counts begin at zero."""
    self._seen_BS[:, slot] = 0

  def note(self, news: News, busy: Sequence[int], ran: int) -> None:
    """What has come of `ran` rounds in the slots that were busy."""
    self._ran += ran
    if news.counts_BS is not None:
      new_BS = news.counts_BS[:, busy] - self._seen_BS[:, busy]
      self._seen_BS[:, busy] = news.counts_BS[:, busy]
      self._new_S += new_BS.sum(axis=1)

  def _forget(self) -> None:
    self._new_S, self._ran = np.zeros((2, self._slots), np.int64), 0


def _reader(batch: Batch, settings: Settings, rows: int, vocab: int):
  """A function that fills so many slots with requests of half the capacity."""
  context = max(settings.capacity // 2, 1)
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, vocab, (settings.readers, context)).tolist()
  new = max(settings.capacity - context - rows, 1)
  batch.begin({i: Request(prompt, new) for i, prompt in enumerate(prompts)})
  left, chunk = context - 1, settings.chunks[-1]
  while left > 0:
    batch.read(chunk, np.full(settings.readers, min(chunk, left), np.int32))
    left -= chunk

  def fill(width: int) -> None:
    for first in range(0, width, settings.readers):
      some = range(first, min(first + settings.readers, width))
      batch.seat({slot - first: slot for slot in some})

  return fill
