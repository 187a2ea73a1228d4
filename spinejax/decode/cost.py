"""What a round costs on the machine at hand, and the block that pays best.

By the rows of its block (`CostTable`), or by the rows of all requests that are
verified packed (`BudgetTable`), which is what `decode.schedule` goes by.

A wider block proposes more, and costs more to draft and to verify; how much
more depends on the machine, the batch and the context. Where slots do not
look ahead, a narrower block proposes the leading tokens of a wider one, so
acceptance measured once, at the widest, holds for all.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from spinejax.decode.generate import generate
from spinejax.decode.request import Prompt
from spinejax.decode.timing import Bench
from spinejax.drafters.base import DraftModel
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.report.stats import acceptance
from spinejax.target.loading import Target
from spinejax.verify.sampling import Sampling

_WIDTHS = (2, 4, 6, 8, 12)
# Rounds in a call, and calls.
_ROUNDS, _CALLS = 4, 5
# Of the rows of a batch, those that budgets are tried at.
_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class CostTable:
  """Time of a round at one batch size and capacity.

  Attributes:
    batch: requests.
    round_ms: milliseconds by rows of the block; 1 is plain decoding.
  """

  batch: int
  round_ms: dict[int, float]

  def tokens_per_s(self, survival: Sequence[float]) -> dict[int, float]:
    """Expected tokens a second, of all requests, by rows of the block."""
    return {
      width: 1e3 * self.batch * expected_tokens(survival, width) / ms
      for width, ms in self.round_ms.items()
    }


@dataclasses.dataclass(frozen=True)
class BudgetTable:
  """Cost of a round of `batch` requests by the rows verified in all.

  Attributes:
    batch: requests that the programs were compiled for.
    plain: of a round that drafts nothing but keeps the draft cache fed.
    drafted: of a round that drafts, by its budget.
    unit: of all of them: 'ms' or 'joules'.
  """

  batch: int
  plain: float
  drafted: dict[int, float]
  unit: str = 'ms'

  def __post_init__(self):
    if self.unit not in ('ms', 'joules'):
      raise InputError(f'unit = {self.unit!r}, expected ms or joules')
    if not self.drafted:
      raise InputError('drafted is empty, expected at least one budget')
    for budget in self.drafted:
      if type(budget) is not int or budget < self.batch:
        raise InputError(
          f'drafted has a budget of {budget!r}, expected at least a row for '
          f'each of {self.batch} requests'
        )
    for cost in (self.plain, *self.drafted.values()):
      if not 0 < cost < float('inf'):  # also NaN
        raise InputError(f'a cost of {cost!r}, expected a positive number')
    if max(self.drafted) == self.batch:
      raise InputError(
        f'drafted has no budget beyond a row for each of {self.batch} '
        'requests: nothing that is drafted would be verified'
      )


def expected_tokens(survival: Sequence[float], width: int) -> float:
  """Expected tokens of a round whose block has `width` rows.

  Args:
    survival: P(proposals 1..j are all accepted) for j = 1, 2, ...

  Raises:
    InputError: it does not reach as far as the block.
  """
  if not 1 <= width <= len(survival) + 1:
    raise InputError(
      f'width = {width}, expected 1..{len(survival) + 1}: acceptance is known '
      f'for {len(survival)} proposals'
    )
  return 1.0 + float(sum(survival[: width - 1]))


def best_width(table: CostTable, survival: Sequence[float]) -> int:
  """The rows of a block, 2 or more, that decode fastest; the fewest of equals.

  Raises:
    InputError: acceptance is not known for a width, or there is none.
  """
  rates = table.tokens_per_s(survival)
  widths = sorted(width for width in rates if width > 1)
  if not widths:
    raise InputError('widths is empty, expected at least one from 2 on')
  return max(widths, key=rates.get)


def widths_of(draft: DraftModel) -> list[int]:
  """Rows of blocks worth trying: a few, and the drafter's own number.

  Only its own where its slots look ahead.
  """
  own = draft.drafter.slots + 1
  if not _looks_back(draft.drafter.cfg):
    return [own]
  return [*(width for width in _WIDTHS if width < own), own]


def _looks_back(cfg) -> bool:
  """Whether no slot depends on slots after it."""
  if not hasattr(cfg, 'is_causal'):
    return True
  return all(map(cfg.is_causal, range(cfg.layers)))


def with_width(draft: DraftModel, width: int) -> DraftModel:
  """The same drafter with blocks of `width` rows, the anchor included.

  Raises:
    InputError: slots look ahead, so other tokens would be proposed; or the
      block is wider than the drafter's own.
  """
  cfg, own = draft.drafter.cfg, draft.drafter.slots + 1
  if width == own:
    return draft
  if not _looks_back(cfg):
    raise InputError(
      f'drafter {draft.drafter.name} is not causal inside its block: at '
      f'another width than {own} it proposes other tokens'
    )
  if not 2 <= width <= own:
    raise InputError(f'width = {width}, expected 2..{own}')
  if hasattr(cfg, 'block'):
    cfg = cfg.of_rows(width)
  else:
    cfg = dataclasses.replace(cfg, slots=width - 1)
  return dataclasses.replace(
    draft, drafter=dataclasses.replace(draft.drafter, cfg=cfg)
  )


def probe(
  target: Target,
  draft: DraftModel,
  batch: int,
  capacity: int,
  widths: Sequence[int] | None = None,
  sampling: Sampling | None = None,
) -> CostTable:
  """Times a plain step and a round of every width, in turn.

  Each width compiles a program. They are those that `generate` runs at this
  batch size and capacity, which has not to compile the chosen one again.

  Args:
    target, draft: what is timed.
    batch: requests.
    capacity: rows of the caches, half of them in use.
    widths: rows of a block; by default `widths_of` the drafter.
    sampling: of the requests; greedy by default.

  Raises:
    InputError: as `with_width`; the drafter was made for another target; or
      the capacity is too small for a few rounds.
  """
  draft.check(target)
  widths = widths_of(draft) if widths is None else widths
  models = [plain_model(), *(with_width(draft, width) for width in widths)]
  bench = _bench(target, batch, capacity, _ROUNDS, sampling)
  times = bench.time(bench.compile(models), _CALLS)
  # Of so few calls the least is steadier than the median: what else runs on
  # the machine can only add.
  took = [each.low for each in times]
  return CostTable(batch, dict(zip([1, *widths], took, strict=True)))


def _bench(target, batch, capacity, rounds, sampling) -> Bench:
  """Rounds of the programs that decode at that batch size and capacity."""
  return Bench(
    target.cfg,
    target.params,
    batch=batch,
    context=capacity // 2,
    capacity=capacity,
    rounds=rounds,
    sampling=sampling,
    stops=len(target.tokenizer.stop_ids),
  )


def budgets_of(
  draft: DraftModel, batch: int, shares: Sequence[float] = _SHARES
) -> list[int]:
  """Budgets worth trying: a quarter to all of what a batch can verify.

  Those that have no row for a proposal are left out.
  """
  most = batch * (draft.drafter.slots + 1)
  budgets = {round(most * share) for share in shares}
  return sorted(budget for budget in budgets if budget > batch)


def probe_budgets(
  target: Target,
  draft: DraftModel,
  batch: int,
  capacity: int,
  budgets: Sequence[int] | None = None,
  sampling: Sampling | None = None,
) -> BudgetTable:
  """Times plain rounds and packed rounds of every budget, in turn.

  Args:
    target, draft, batch, capacity, sampling: as for `probe`.
    budgets: rows verified in all; by default `budgets_of` the drafter.

  Raises:
    InputError: the drafter was made for another target, a budget cannot be
      packed, or the capacity is too small for a few rounds.
  """
  draft.check(target)
  budgets = budgets_of(draft, batch) if budgets is None else list(budgets)
  # As long as it takes until the draft cache has to be fed.
  rounds = max(_ROUNDS, draft.drafter.slots + 1)
  bench = _bench(target, batch, capacity, rounds, sampling)
  programs = bench.compile([draft] * (1 + len(budgets)), [0, *budgets])
  plain, *drafted = (each.low for each in bench.time(programs, _CALLS))
  return BudgetTable(batch, plain, dict(zip(budgets, drafted, strict=True)))


def measure_survival(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Prompt],
  batch: int,
  **settings,
) -> list[float]:
  """P(proposals 1..j are all accepted) of a drafter on some prompts.

  Args:
    prompts: as for `generate`.
    batch: of them decoded at once; the last batch is filled up.
    settings: as for `generate`.

  Raises:
    InputError: as `generate`.
  """
  hist_K = np.zeros(draft.drafter.slots + 1, np.int64)
  for first in range(0, len(prompts), batch):
    some = [prompts[i % len(prompts)] for i in range(first, first + batch)]
    for answer in generate(target, draft, some, **settings).completions:
      hist_K += answer.accepted_hist
  return acceptance(hist_K).by_position
