"""Joules of whole requests, put together from those of steady pieces.

A request of I prompt and O answer tokens costs its share of reading prompts,
and of O steps at contexts I, I + 1, ...; between the lengths that were
measured both are interpolated: prefill in joules a token, a step in joules.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Curve:
  """A quantity at ascending lengths, linear between and flat beyond them."""

  at: tuple[float, ...]
  value: tuple[float, ...]

  def __call__(self, where):
    return np.interp(where, self.at, self.value)


@dataclasses.dataclass(frozen=True)
class Measured:
  """One model's pieces.

  Attributes:
    prefill: joules of a prompt token, by prompt length.
    step: joules of a step of one request, by context; for each tier, from the
      smallest: (the longest request, batch, curve).
  """

  prefill: Curve
  step: tuple[tuple[int, int, Curve], ...]

  def request(self, input: int, output: int) -> tuple[float, int]:
    """Joules of a request, and the batch that it was decoded in.

    Raises:
      InputError: longer than every tier.
    """
    for longest, batch, curve in self.step:
      if input + output <= longest:
        steps = curve(input + np.arange(output)).sum()
        return float(self.prefill(input) * input + steps), batch
    raise InputError(
      f'{input} + {output} tokens, expected at most {self.step[-1][0]}'
    )


def measured(rows: Sequence[Mapping[str, Any]], value: str) -> Measured:
  """The pieces of one model from their metric rows.

  Args:
    rows: each has `kind`, `longest`, `batch`, `tokens`, `context` and the
      value of one call of it; repeats are averaged.
    value: the column to compose: joules, or seconds.

  Raises:
    InputError: there is no prefill, or no step.
  """
  prefill = collections.defaultdict(list)
  steps = collections.defaultdict(lambda: collections.defaultdict(list))
  for row in rows:
    if row['kind'] == 'prefill':
      each = row[value] / (row['batch'] * row['tokens'])
      prefill[row['tokens']].append(each)
    elif row['kind'] == 'decode':
      each = row[value] / (row['batch'] * row['rounds'])
      tier = row['longest'], row['batch']
      steps[tier][row['context']].append(each)
  if not prefill or not steps:
    missing = 'decode' if prefill else 'prefill'
    raise InputError(f'no piece of {missing} was measured')
  return Measured(
    _curve(prefill), tuple((*t, _curve(steps[t])) for t in sorted(steps))
  )


def requests(
  rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]
) -> list[dict[str, Any]]:
  """Requests of one model: composed of all pairs of lengths, and run whole.

  Args:
    rows: pieces as for `measured` with `joules` and `seconds` of a call;
      those of kind 'idle' have `watts`, those of kind 'whole' have `input`,
      `output`, `batch` and what one request took.

  Returns:
    Rows with `how` ('composed' or 'whole'), `input`, `output`, `joules`,
    `joules_net` (without what the idle device draws), `seconds` and `batch`;
    those run whole have the joules as `composed`, too.

  Raises:
    InputError: a kind of piece is missing.
  """
  idle = [row['watts'] for row in rows if row['kind'] == 'idle']
  if not idle:
    raise InputError('no idle power was measured')
  own = [
    {**row, 'joules_net': row['joules'] - np.mean(idle) * row['seconds']}
    for row in rows
    if 'joules' in row
  ]
  names = ('joules', 'joules_net', 'seconds')
  laws = {name: measured(own, name) for name in names}

  def composed(input, output):
    found = {name: laws[name].request(input, output) for name in names}
    row = dict(how='composed', input=input, output=output)
    row |= {name: value for name, (value, _) in found.items()}
    return row | dict(batch=found['joules'][1])

  made = [composed(i, o) for i in lengths for o in lengths]
  for row in own:
    if row['kind'] == 'whole':
      one = composed(row['input'], row['output'])
      made.append(one | dict(how='whole', composed=one['joules']) | {
        name: float(row[name]) for name in names
      })  # fmt: skip
  return made


def _curve(values: Mapping[float, list[float]]) -> Curve:
  at = sorted(values)
  return Curve(tuple(at), tuple(float(np.mean(values[x])) for x in at))
