"""Tokens of speculation, from measured rounds and given acceptance.

What a round takes does not depend on what is accepted in it. So rounds are
measured once, and every acceptance is composed with them: a token takes what
the round takes, by the tokens that it emits.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.decode.cost import expected_tokens
from spinejax.energy import fit
from spinejax.energy.speculation import PLAIN, Rounds, Speculation
from spinejax.errors import InputError

Row = Mapping[str, Any]
# What a measured round takes, by its unit.
VALUES = ('joules', 'time_ms')
# What speculation saves beside plain decoding, or does not.
REGIONS = ('both', 'time only', 'energy only', 'neither')
# Savings below which their sign is not asked for.
SIGN_FROM = 0.05
_ROUND = ('target', 'drafter', 'rows', 'batch', 'context')


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """How far proposals are accepted, of the drafters that it is known of.

  Attributes:
    name: of the data it was measured on, or of how it was forced.
    forced: it was not measured on text.
    target: that it is of; '' for any.
    survival: by drafter, P(proposals 1..j are all accepted), j = 1, 2, ...;
      the key '' stands for all others.
  """

  name: str
  forced: bool
  target: str
  survival: Mapping[str, Sequence[float]]

  def tokens(self, target: str, drafter: str, rows: int) -> float | None:
    """Tokens of a round of so many rows, or None: not known."""
    known = self.survival.get(drafter, self.survival.get(''))
    if known is None or self.target not in ('', target):
      return None
    return expected_tokens(known, rows) if rows <= len(known) + 1 else None


def merged(rows: Iterable[Row]) -> list[dict[str, Any]]:
  """Rounds, each once: repeats are averaged, idle power is set apart.

  Args:
    rows: of kind 'round' with `joules` and `time_ms` of a round, and of kind
      'idle' with `watts`; others are passed over.

  Returns:
    Rows with `joules`, `joules_net`, `time_ms` and `repeats`.
  """
  groups, idle = collections.defaultdict(list), collections.defaultdict(list)
  for row in rows:
    if row['kind'] == 'round':
      groups[tuple(row[name] for name in _ROUND)].append(row)
    elif row['kind'] == 'idle':
      idle[row['target']].append(row['watts'])
  found = []
  for key, some in groups.items():
    joules, time_ms = (float(np.mean([r[v] for r in some])) for v in VALUES)
    one = dict(zip(_ROUND, key, strict=True))
    one |= dict(joules=joules, time_ms=time_ms, repeats=len(some))
    if watts := idle.get(one['target']):
      one['joules_net'] = joules - 1e-3 * time_ms * float(np.mean(watts))
    found.append(one)
  return found


def cells(
  rounds: Sequence[Row], acceptances: Sequence[Acceptance]
) -> list[dict[str, Any]]:
  """What tokens take: of plain steps, and of each drafter and acceptance.

  Args:
    rounds: as `merged` gives them.

  Returns:
    Rows with `concurrency`, `tokens_per_round`, `joules_per_token`, `time_ms`
    of a request's token, `tokens_per_s` of all; of drafters also `dataset`,
    `acceptance_is` ('measured' or 'synthetic'), `speedup_vs_plain`,
    `joules_vs_plain` (below 1 is a saving) and `region`.
  """
  plain = {_place(row): row for row in rounds if row['drafter'] == PLAIN}
  made = []
  for row in rounds:
    step = plain.get(_place(row))
    if row['drafter'] == PLAIN:
      if row['rows'] == 1:
        made.append(_cell(row, 1.0))
      continue
    for one in acceptances:
      tokens = one.tokens(row['target'], row['drafter'], row['rows'])
      if step is None or tokens is None:
        continue
      label = 'synthetic' if one.forced else 'measured'
      cell = _cell(row, tokens) | dict(dataset=one.name, acceptance_is=label)
      joules = row['joules'] / tokens / step['joules']
      speed = tokens * step['time_ms'] / row['time_ms']
      cell |= dict(
        joules_vs_plain=joules, speedup_vs_plain=speed,
        region=region(1 - 1 / speed, 1 - joules),
      )  # fmt: skip
      made.append(cell)
  return made


def region(time_saved: float, energy_saved: float) -> str:
  """Which of `REGIONS` it is."""
  if time_saved > 0:
    return REGIONS[0] if energy_saved > 0 else REGIONS[1]
  return REGIONS[2] if energy_saved > 0 else REGIONS[3]


def law_of(rounds: Sequence[Row], value: str = 'joules') -> Speculation:
  """The law of one target, fitted to all of its rounds.

  Raises:
    InputError: see `fit.least_squares`; or rounds of several targets.
  """
  _one_target(rounds)
  cost_N = np.array([row[value] for row in rounds])
  return Speculation(_drafters(rounds)).fit(Rounds.from_rows(rounds), cost_N)


def held_out(
  rounds: Sequence[Row], value: str = 'joules', by: str = 'place'
) -> np.ndarray:
  """Predictions [N] of the rounds of one target, each by a law without it.

  Args:
    by: what is left out together: all rounds of a 'place' (batch and context),
      of a 'batch', or of a 'context'.

  Raises:
    InputError: what remains cannot be fitted.
  """
  _one_target(rounds)
  names = ('batch', 'context') if by == 'place' else (by,)
  keys = [tuple(row[name] for name in names) for row in rounds]
  splits = []
  for key in dict.fromkeys(keys):
    out_N = np.array([one == key for one in keys])
    splits.append(fit.Split(f'{by} {key}', ~out_N, out_N))
  predicted_N, _ = fit.predict_held_out(
    Speculation(_drafters(rounds)), Rounds.from_rows(rounds),
    np.array([row[value] for row in rounds]), splits,
  )  # fmt: skip
  return predicted_N


def scores(
  rounds: Sequence[Row], predicted_N: np.ndarray, value: str,
  acceptances: Sequence[Acceptance],
) -> dict[str, Any]:  # fmt: skip
  """How well predictions meet what was measured.

  The error of a token is that of its round, since both emit as many.

  Returns:
    `mape` in per cent; of the cells whose measured saving exceeds 5 %, how
    many (`sign_cells`) and the share whose sign is right (`sign_right`, None of
    no cells).
  """
  measured_N = np.array([row[value] for row in rounds])
  step = {
    _place(row): (row[value], predicted)
    for row, predicted in zip(rounds, predicted_N, strict=True)
    if row['drafter'] == PLAIN
  }
  right = []
  for row, predicted in zip(rounds, predicted_N, strict=True):
    if row['drafter'] == PLAIN or _place(row) not in step:
      continue
    for one in acceptances:
      tokens = one.tokens(row['target'], row['drafter'], row['rows'])
      if tokens is None:
        continue
      true, said = (
        1 - cost / tokens / plain
        for cost, plain in zip(
          (row[value], predicted), step[_place(row)], strict=True
        )
      )
      if abs(true) > SIGN_FROM:
        right.append((true > 0) == (said > 0))
  return dict(
    mape=float(100 * np.mean(np.abs(predicted_N / measured_N - 1))),
    worst=float(100 * np.max(np.abs(predicted_N / measured_N - 1))),
    cells=len(rounds), sign_cells=len(right),
    sign_right=float(np.mean(right)) if right else None,
  )  # fmt: skip


def apart(rows: Iterable[Row]) -> list[float]:
  """By how much the joules of repeated rounds differ, of their mean."""
  groups = collections.defaultdict(list)
  for row in rows:
    if row['kind'] == 'round':
      groups[tuple(row[name] for name in _ROUND)].append(row['joules'])
  return [
    float(np.ptp(joules) / np.mean(joules))
    for joules in groups.values()
    if len(joules) > 1
  ]


def _cell(row: Row, tokens: float) -> dict[str, Any]:
  cell = {name: row[name] for name in _ROUND} | dict(
    concurrency=row['batch'], tokens_per_round=tokens,
    joules_per_token=row['joules'] / (row['batch'] * tokens),
    time_ms=row['time_ms'] / tokens,
    tokens_per_s=1e3 * row['batch'] * tokens / row['time_ms'],
  )  # fmt: skip
  if 'joules_net' in row:
    each = row['joules_net'] / (row['batch'] * tokens)
    cell['joules_per_token_net'] = each
  return cell


def _place(row: Row) -> tuple:
  return row['target'], row['batch'], row['context']


def _drafters(rounds: Sequence[Row]) -> list[str]:
  names = dict.fromkeys(row['drafter'] for row in rounds)
  return [name for name in names if name != PLAIN]


def _one_target(rounds: Sequence[Row]) -> None:
  names = list(dict.fromkeys(row['target'] for row in rounds))
  if len(names) != 1:
    raise InputError(
      f'rounds of {", ".join(names) or "no target"}, expected those of one'
    )
