"""What measured rounds say: errors of their laws, break-evens, two claims."""

import dataclasses

import numpy as np

from spinejax import report
from spinejax.energy import operating
from spinejax.energy import speculation as rounds_law
from spinejax.energy.operating import REGIONS, VALUES, Acceptance
from spinejax.energy.speculation import PLAIN, Rounds, Speculation
from spinejax.errors import InputError

_LEFT_OUT = ('place', 'batch', 'context')
_UNITS = {'joules': 'joules', 'time_ms': 'milliseconds'}


@dataclasses.dataclass(frozen=True)
class Measured:
  """What was measured of a target, and the laws fitted to it.

  Attributes:
    label: what the numbers are worth.
  """

  device: str
  device_kind: str
  label: str
  rounds: list[dict]
  laws: dict[str, Speculation]


def scored(found: Measured, acceptances: list[Acceptance]) -> list[dict]:
  """How well the laws predict rounds that they were not fitted to."""
  rows = []
  for value in VALUES:
    predicted = found.laws[value].predict(Rounds.from_rows(found.rounds))
    splits = {'in_sample': predicted}
    for by in _LEFT_OUT:
      try:
        splits[f'leave_one_{by}_out'] = operating.held_out(
          found.rounds, value, by
        )
      except InputError as error:
        print(f'{_UNITS[value]}, {error}')
    rows += [
      dict(law='speculation', value=value, split=split)
      | operating.scores(found.rounds, guess, value, acceptances)
      for split, guess in splits.items()
    ]
  return rows


def coefficients(found: Measured) -> list[dict]:
  """Terms of the laws; of a round, in joules and in milliseconds."""
  return [
    dict(law='speculation', value=value, term=name, coefficient=float(number),
         hidden_rows=law.hidden)
    for value, law in found.laws.items()
    for name, number in zip(law.names, law.coef_, strict=True)
  ]  # fmt: skip


def break_evens(config, found: Measured) -> list[dict]:
  """Tokens a round from which on the drafter pays, as measured, by place."""
  steps = {
    (row['batch'], row['context']): row
    for row in found.rounds
    if row['drafter'] == PLAIN and row['rows'] == 1
  }
  rows = []
  for row in found.rounds:
    step = steps.get((row['batch'], row['context']))
    own = row['drafter'], row['rows']
    if step and own == (config.drafter.name, config.drafter.block):
      rows.append(
        dict(drafter=own[0], rows=own[1], batch=row['batch'],
             context=row['context'])
        | {f'break_even_{v}': row[v] / step[v] for v in VALUES}
      )  # fmt: skip
  return sorted(rows, key=lambda row: (row['batch'], row['context']))


def ranges(config, found: Measured) -> list[dict]:
  """By the laws, what drafting pays for, as ranges; None: without end.

  Numbers of requests at the shortest context of the map, and contexts with the
  most requests.
  """
  rows = []
  name, own = config.drafter.name, dict(rows=config.drafter.block)
  most, shortest = config.batches[1], config.contexts[0]
  for tokens in config.tokens:
    for value, law in found.laws.items():
      same = own | dict(drafter=name, value=value, tokens_per_round=tokens)
      batches = rounds_law.batches_that_save(
        law, name, context=shortest, tokens=tokens, **own
      )
      between = rounds_law.contexts_that_save(
        law, name, batch=most, tokens=tokens, **own
      )
      for over, at, found_ones in (
        ('batch', dict(context=shortest), batches),
        ('context', dict(batch=most), [between] if between else []),
      ):
        for low, high in found_ones or [(None, None)]:
          finite = high is not None and np.isfinite(high)
          ends = dict(low=low, high=high if finite else None)
          rows.append(same | at | ends | dict(pays_over=over))
  return rows


def _words(rows: list[dict]) -> str:
  return ', '.join(
    'none' if row['low'] is None
    else f'from {row["low"]:.0f}' if row['high'] is None
    else f'{row["low"]:.0f} to {row["high"]:.0f}'
    for row in rows
  )  # fmt: skip


def show(rows: list[dict], cells: list[dict]) -> None:
  """Errors of the laws, break-evens by place, and what they say of claims."""
  report.table.print_columns([
    {'law of': _UNITS[row['value']], 'split': row['split'],
     'MAPE %': f'{row["mape"]:.1f}', 'worst': f'{row["worst"]:.1f}',
     'rounds': str(row['cells']),
     'sign right': '-' if row['sign_right'] is None
     else f'{row["sign_right"]:.1%} of {row["sign_cells"]}'}
    for row in rows if 'split' in row
  ], names=2)  # fmt: skip
  print(
    'sign right: of cells whose saving exceeds '
    f'{operating.SIGN_FROM:.0%}, text and forced acceptance\n'
  )
  even = [row for row in rows if 'break_even_joules' in row]
  contexts = sorted({row['context'] for row in even})
  batches = sorted({row['batch'] for row in even})
  at = {(row['batch'], row['context']): row for row in even}
  for value in VALUES:
    report.table.print_columns([
      {f'{_UNITS[value]}, requests': str(batch)} | {
        f'at {context}': f'{at[batch, context][f"break_even_{value}"]:.2f}'
        if (batch, context) in at else '-'
        for context in contexts
      }
      for batch in batches
    ], names=1)  # fmt: skip
  print(
    'tokens a round from which on drafting pays, by requests and context, '
    'measured\n'
  )
  lines: dict[tuple, dict[str, list[dict]]] = {}
  for row in rows:
    if 'pays_over' in row:
      key = row['value'], row['tokens_per_round']
      over = lines.setdefault(key, {})
      over.setdefault(row['pays_over'], []).append(row)
  report.table.print_columns([
    {'law of': _UNITS[value], 'tokens a round': f'{tokens:g}',
     f'requests at {over["batch"][0]["context"]}': _words(over['batch']),
     f'contexts of {over["context"][0]["batch"]}': _words(over['context'])}
    for (value, tokens), over in sorted(lines.items())
  ], names=2)  # fmt: skip
  print('numbers of requests, and contexts, at which drafting pays, by law\n')
  for line in claims(even):
    print(line)
  both = [row['region'] for row in cells]
  apart = sum(map(both.count, REGIONS[1:3]))
  print(
    f'in joules the scheduler decides otherwise than in time in {apart} '
    f'of\n{len(both)} cells ({both.count(REGIONS[1])} save time only, '
    f'{both.count(REGIONS[2])} energy only)'
  )


def claims(even: list[dict]) -> list[str]:
  """What the measured break-evens say of two claims in the literature."""
  lines = []
  short = min(row['context'] for row in even)
  some = [row for row in even if row['context'] == short]
  few, many = some[0], some[-1]
  lines.append(
    f'many requests: at a context of {short} the break-even in joules goes '
    f'from {few["break_even_joules"]:.2f}\ntokens a round '
    f'({few["batch"]} requests) to {many["break_even_joules"]:.2f} '
    f'({many["batch"]})'
  )
  for batch in sorted({row['batch'] for row in even})[1:]:
    some = [row for row in even if row['batch'] == batch]
    if len(some) > 1:
      lines.append(
        f'long contexts: at {batch} requests it goes from '
        f'{some[0]["break_even_joules"]:.2f} ({some[0]["context"]}) to '
        f'{some[-1]["break_even_joules"]:.2f} ({some[-1]["context"]})'
      )
  return lines
