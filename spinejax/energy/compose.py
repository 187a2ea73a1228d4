"""Joules of whole requests, put together from those of steady pieces.

A request of I prompt and O answer tokens costs its share of reading prompts,
and of O steps at contexts I, I + 1, ... A step of B requests at context c
takes A + k B c: weights, products and all that is paid once, and the keys and
values of each. A and k were measured at a few batches; between them they are
interpolated, since a server runs as many requests at once as memory holds.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Measured:
  """One model's pieces; ascending.

  Attributes:
    prompts: lengths at which prompts were read, and `prefill` the joules of a
      token of theirs; linear between them, flat beyond.
    batches: of the steps that were measured.
    once, each: A and k at these batches.
    tokens: that the caches hold, of all requests together.
    longest: request.
  """

  prompts: tuple[int, ...]
  prefill: tuple[float, ...]
  batches: tuple[int, ...]
  once: tuple[float, ...]
  each: tuple[float, ...]
  tokens: int
  longest: int

  def batch(self, input: int, output: int) -> int:
    """Requests of these lengths that are decoded at once.

    As many as the caches hold to their end, within the measured batches.
    """
    fitting = self.tokens // (input + output)
    return int(np.clip(fitting, self.batches[0], self.batches[-1]))

  def request(self, input: int, output: int, batch: int | None = None) -> float:
    """Joules of a request.

    Args:
      batch: decoded at once; by default what `batch` says.

    Raises:
      InputError: longer than the longest that was measured.
    """
    if input + output > self.longest:
      raise InputError(
        f'{input} + {output} tokens, expected at most {self.longest}'
      )
    batch = self.batch(input, output) if batch is None else batch
    reading = input * np.interp(input, self.prompts, self.prefill)
    once = np.interp(batch, self.batches, self.once) / batch
    each = np.interp(batch, self.batches, self.each)
    contexts = input * output + output * (output - 1) / 2
    return float(reading + output * once + contexts * each)


def measured(rows: Sequence[Mapping[str, Any]], value: str) -> Measured:
  """The pieces of one model from their metric rows.

  Args:
    rows: each has `kind`, `longest`, `batch`, `tokens`, `context`, `rounds`
      and the value of one call of it; repeats are averaged.
    value: the column to compose: joules, or seconds.

  Raises:
    InputError: there is no prefill, or a batch without steps at two contexts.
  """
  prefill = collections.defaultdict(list)
  steps = collections.defaultdict(list)
  for row in rows:
    if row['kind'] == 'prefill':
      prefill[row['tokens']].append(row[value] / row['batch'] / row['tokens'])
    elif row['kind'] == 'decode':
      steps[row['batch']].append((row['context'], row[value] / row['rounds']))
  if not prefill or not steps:
    missing = 'decode' if prefill else 'prefill'
    raise InputError(f'no piece of {missing} was measured')
  lines = []
  for batch, points in sorted(steps.items()):
    context, took = np.array(points).T
    if len(set(context)) < 2:
      raise InputError(
        f'batch {batch}: steps at {len(set(context))} context, expected at '
        'least 2'
      )
    slope, once = np.polyfit(context, took, 1)
    lines.append((once, slope / batch))
  once, each = zip(*lines, strict=True)
  prompts = sorted(prefill)
  decode = [row for row in rows if row['kind'] == 'decode']
  return Measured(
    tuple(prompts), tuple(float(np.mean(prefill[x])) for x in prompts),
    tuple(sorted(steps)), once, each,
    tokens=max(row['batch'] * row['longest'] for row in decode),
    longest=max(row['longest'] for row in decode),
  )  # fmt: skip


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

  def composed(input, output, batch):
    row = dict(how='composed', input=input, output=output, batch=batch)
    return row | {
      name: laws[name].request(input, output, batch) for name in names
    }

  batch = laws['joules'].batch
  made = [composed(i, o, batch(i, o)) for i in lengths for o in lengths]
  for row in own:
    if row['kind'] == 'whole':
      one = composed(row['input'], row['output'], row['batch'])
      made.append(one | dict(how='whole', composed=one['joules']) | {
        name: float(row[name]) for name in names
      })  # fmt: skip
  return made
