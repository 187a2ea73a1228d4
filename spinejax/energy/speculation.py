"""What a round of speculation costs, in joules or in time, and when it pays.

SIMPLE's decoding terms extended to rounds. In a round of B requests at context
c the target reads its weights and each request's keys and values once, however
many of the K rows of a block it verifies; a drafter adds as much again of its
own:

  E(B, c, K) = W + k B c + n B K                K = 1: plain decoding
             + W_d + k_d B c + n_d B K          with the drafter d
             + a c + m max(0, B K - R)          in time, if at all

The last line is what does not add up in time. A request's keys are read by a
few of a chip's processors, so that one long context alone takes its time; and R
rows are multiplied while weights are read. Tokens cost E / (B tau), where tau
is the tokens that a request gets from a round; nothing else depends on what is
accepted. So a drafter saves where E < tau E_plain. With W = 0, a free draft and
no last line that is beyond a context of n (K - tau) / (k (tau - 1)).

Letters: N rounds, J columns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.decode.cost import BudgetTable
from spinejax.decode.forced import survival_of_mean
from spinejax.energy import fit
from spinejax.errors import InputError

PLAIN = 'plain'
# Rows that weights may hide: a chip does so many products of two bytes each
# while it reads them. An H200 at its limits has 206.
_HIDDEN = tuple(2.0**k for k in np.arange(4, 12.5, 0.5))
# By how much of an error they must be better than none, or than others.
_BETTER = 1e-6
_PASS = ('weights', 'kv', 'rows')
_ALONE, _BEYOND = 'context alone', 'rows beyond'


@dataclasses.dataclass(frozen=True)
class Rounds:
  """Rounds of one target.

  Attributes:
    drafter_N: names; 'plain' drafts nothing.
    batch_N, context_N: requests, and tokens of each.
    rows_N: K of a request's block, the anchor included.
    verified_N: rows of all requests that the target reads: B K, or fewer where
      they are packed.
  """

  drafter_N: np.ndarray
  batch_N: np.ndarray
  context_N: np.ndarray
  rows_N: np.ndarray
  verified_N: np.ndarray

  @classmethod
  def of(cls, drafter, batch, context, rows, verified=None) -> Rounds:
    """Rounds by values or arrays of one length; without `verified`, padded."""
    if verified is None:
      verified = np.multiply(batch, rows)
    arrays = np.broadcast_arrays(drafter, batch, context, rows, verified)
    drafter_N, *numbers = (np.atleast_1d(x) for x in arrays)
    return cls(drafter_N, *(x.astype(float) for x in numbers))

  @classmethod
  def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Rounds:
    """Those of metric rows with `drafter, batch, context, rows`."""
    names = 'drafter', 'batch', 'context', 'rows'
    return cls.of(*([row[name] for row in rows] for name in names))

  def __len__(self) -> int:
    return len(self.drafter_N)

  def __getitem__(self, rows_N) -> Rounds:
    """The rounds that a mask or an array of indices picks."""
    fields = dataclasses.fields(self)
    return Rounds(**{f.name: getattr(self, f.name)[rows_N] for f in fields})

  @property
  def plain(self) -> Rounds:
    """Plain steps of as many requests at the same contexts."""
    return Rounds.of(PLAIN, self.batch_N, self.context_N, 1)


class Speculation:
  """The law of one target on one machine; `fit` and `predict`.

  Attributes:
    drafters: that it knows, beside plain.
    hidden: R; None where no rows are hidden.
    coef_: coefficients [J] of `names`, in joules or in seconds, after `fit`.
  """

  def __init__(self, drafters: Sequence[str], hidden: float | None = None):
    self.drafters, self.hidden = tuple(drafters), hidden
    self.coef_: np.ndarray | None = None

  @property
  def names(self) -> list[str]:
    """Of the columns: the target's, three of each drafter, what is of time."""
    own = [f'{d} {name}' for d in self.drafters for name in _PASS]
    beyond = [_BEYOND] if self.hidden is not None else []
    return [*_PASS, *own, _ALONE, *beyond]

  def columns(self, rounds: Rounds) -> np.ndarray:
    """The terms [N, J] without their coefficients.

    Raises:
      InputError: there is a drafter that the law does not know.
    """
    for name in dict.fromkeys(rounds.drafter_N.tolist()):
      if name not in (PLAIN, *self.drafters):
        raise InputError(
          f'drafter {name!r}, expected one of '
          f'{", ".join((PLAIN, *self.drafters))}'
        )
    one_N, kv_N = np.ones(len(rounds)), rounds.batch_N * rounds.context_N
    columns = [one_N, kv_N, rounds.verified_N]
    for name in self.drafters:
      here_N = rounds.drafter_N == name
      own = one_N, kv_N, rounds.batch_N * rounds.rows_N
      columns += [here_N * x for x in own]
    columns.append(rounds.context_N)
    if self.hidden is not None:
      columns.append(np.maximum(0.0, rounds.verified_N - self.hidden))
    return np.stack(columns, axis=1)

  def fit(self, rounds: Rounds, cost_N) -> Speculation:
    """Takes nonnegative coefficients, and the R, of least relative error.

    Args:
      cost_N: joules, or time, of each round.

    Raises:
      InputError: see `fit.least_squares`.
    """
    best = math.inf
    most = rounds.verified_N.max()
    # Without hidden rows first: only what is better takes its place.
    for hidden in (None, *(h for h in _HIDDEN if h < most)):
      law = Speculation(self.drafters, hidden)
      try:
        coef_J = fit.least_squares(law.columns(rounds), cost_N, law.names)
      except InputError:
        if hidden is None:
          raise
        continue  # too few rounds on one side of R
      error = np.linalg.norm(law.columns(rounds) @ coef_J / cost_N - 1)
      if error < best - _BETTER:
        best, self.hidden, self.coef_ = error, hidden, coef_J
    return self

  def predict(self, rounds: Rounds) -> np.ndarray:
    """Joules, or time, [N] of each round.

    Raises:
      InputError: the law has no coefficients yet, or an unknown drafter.
    """
    if self.coef_ is None:
      raise InputError('the law has no coefficients: call fit first')
    return self.columns(rounds) @ self.coef_


def per_token(law: Speculation, rounds: Rounds, tokens_N) -> np.ndarray:
  """Joules, or the server's time, of a token, [N].

  Args:
    tokens_N: tokens that a request gets from a round; 1 of plain steps.
  """
  return law.predict(rounds) / (rounds.batch_N * tokens_N)


def saving(law: Speculation, rounds: Rounds, tokens_N) -> np.ndarray:
  """Share [N] of a plain token's cost that speculation saves; a loss if < 0."""
  return 1 - break_even_tokens(law, rounds) / tokens_N


def break_even_tokens(law: Speculation, rounds: Rounds) -> np.ndarray:
  """Tokens a round [N] from which on speculation saves; maybe more than K."""
  return law.predict(rounds) / law.predict(rounds.plain)


def break_even_acceptance(law: Speculation, rounds: Rounds) -> np.ndarray:
  """Acceptance [N] from which on speculation saves, alike in every slot.

  NaN where it loses even if all is accepted.
  """
  found = []
  for tokens, rows in zip(
    break_even_tokens(law, rounds), rounds.rows_N, strict=True
  ):
    slots = int(rows) - 1
    inside = slots > 0 and tokens <= rows
    found.append(survival_of_mean(max(tokens, 1.0), slots)[0] if inside
                 else math.nan)  # fmt: skip
  return np.array(found)


def contexts_that_save(
  law: Speculation, drafter: str, *, batch: float, rows: int, tokens: float
) -> tuple[float, float] | None:
  """Between which contexts speculation saves, or None: nowhere.

  Args:
    tokens: of a request a round.

  Returns:
    The break-even context and infinity; or 0 and the break-even, where the
    drafter's own keys and values cost more than what it saves of the target's.
  """

  def gain(context):
    rounds = Rounds.of(drafter, batch, context, rows)
    return _gain(law, rounds, tokens)

  found = _where_positive(gain, [0.0, math.inf])
  return found[0] if found else None


def batches_that_save(
  law: Speculation, drafter: str, *, context: float, rows: int, tokens: float
) -> list[tuple[float, float]]:
  """Between which numbers of requests, from 1 on, speculation saves.

  One range begins at 1 as a rule; where products of few rows are hidden, and
  the contexts long, there may be others.
  """

  def gain(batch):
    return _gain(law, Rounds.of(drafter, batch, context, rows), tokens)

  # The gain is linear between the batches at which a pass begins to pay for
  # its products.
  hidden = law.hidden or 0.0
  kinks = sorted({1.0, max(1.0, hidden / rows), max(1.0, hidden)})
  return _where_positive(gain, [*kinks, math.inf])


def _gain(law, rounds: Rounds, tokens: float) -> float:
  """What plain steps for as many tokens cost more than a round."""
  return float(tokens * law.predict(rounds.plain)[0] - law.predict(rounds)[0])


def _where_positive(
  line: Callable[[float], float], kinks: Sequence[float]
) -> list[tuple[float, float]]:
  """Ranges in which a function is positive that is linear between kinks."""
  found: list[tuple[float, float]] = []
  for low, high in zip(kinks[:-1], kinks[1:], strict=True):
    end = high if math.isfinite(high) else low + 1.0
    first, last = line(low), line(end)
    slope = (last - first) / (end - low)
    # Rounding of two nearly equal numbers is no slope.
    if abs(last - first) < 1e-12 * (abs(first) + abs(last)):
      slope = 0.0
    root = low - first / slope if slope else math.nan
    if first > 0 or (first == 0 and slope > 0):
      reach = root if slope < 0 and root < high else high
      piece = low, reach
    elif slope > 0 and root < high:
      piece = root, high
    else:
      continue
    if found and found[-1][1] == piece[0]:
      piece = found.pop()[0], piece[1]
    found.append(piece)
  return found


def budget_table(
  law: Speculation, drafter: str, *, batch: int, context: float, rows: int,
  budgets: Sequence[int], unit: str,
) -> BudgetTable:  # fmt: skip
  """The law as the scheduler's costs: `Scheduling(tables=[...])`.

  With a law of joules the scheduler emits most tokens a joule, instead of most
  a millisecond.

  Args:
    budgets: rows verified in all, packed; B K verifies everything.
    unit: of what the law was fitted to, 'ms' or 'joules'.
  """
  drafted = Rounds.of(drafter, batch, context, rows, np.array(budgets))
  plain = Rounds.of(PLAIN, batch, context, 1)
  costs = map(float, law.predict(drafted))
  return BudgetTable(
    batch, float(law.predict(plain)[0]),
    dict(zip(budgets, costs, strict=True)), unit,
  )  # fmt: skip
