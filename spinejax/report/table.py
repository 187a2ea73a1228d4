"""The table of a decoding run, for a terminal and for a file.

On a terminal it has colour and sparklines. Anywhere else it is plain ASCII,
100 columns wide, so that a log or a README can quote it as it is.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich import box, console, table, text

from spinejax.report import results

Row = Mapping[str, Any]

_WIDTH = 100
_POSITIONS = 16  # columns that fit
_BARS = '▁▂▃▄▅▆▇█'
# A rule under the header and nothing else.
_RULE = box.Box('    \n    \n -- \n    \n    \n    \n    \n    \n', ascii=True)
# What tells runs apart: a column where rows differ, else part of the caption.
_SETTINGS = (
  'target',
  'dataset',
  'temperature',
  'dtype',
  'concurrency',
  'batch',
  'context',
  'seed',
)
_SHORT = {'temperature': 'temp'}
# Said below the table where a row has the key.
_NOTES = {
  'tokens_per_round_low': '[...]: 95 % interval, bootstrap over prompts',
  'tokens_per_round_nonrepetitive': 'no loops: tokens/round without the (n) '
  'prompts that end in a loop',
  'tokens_per_s': 'tokens/s: of one batch after the other, prefill included',
  'speedup_low': 'speed-up: median over batches, decoded in turn with plain',
}


def print_table(
  rows: Sequence[Row],
  *,
  label: str,
  device: str = '',
  file: TextIO | None = None,
) -> None:
  """Prints decoding results, one drafter a line, and acceptance by position.

  Args:
    rows: flat metric rows of a result file. `drafter` is required; a line
      shows what there is of `tokens_per_round` with its `_low` and `_high`,
      `tokens_per_round_nonrepetitive` and `repetitive` (tokens per round
      without the prompts that fell into repetition, and how many did),
      `tokens_per_s`, `speedup_vs_plain`, `joules_per_token`, `exact` and
      `total`, `ties` (prompts that differ only where the target's top two
      tokens tie), and `acceptance_by_position` (a list, P(slot j accepted)
      for j = 1..S).
    label: what the numbers are worth, one of `results.LABELS`.
    device: the hardware they hold for.
    file: where to print; standard output if None.

  Raises:
    ValueError: no rows, a row without `drafter`, or an unknown label.
  """
  file = sys.stdout if file is None else file
  if file.isatty():
    _draw(console.Console(file=file, highlight=False), rows, label, device)
  else:
    file.write(render(rows, label=label, device=device))


def print_columns(
  rows: Sequence[Mapping[str, str]],
  *,
  names: int,
  file: TextIO | None = None,
) -> None:
  """Prints cells that are text already, in the style of `print_table`'s files.

  Args:
    rows: cells by the name of their column; all have the same columns.
    names: leading columns that name the row and are aligned to the left.
    file: where to print; standard output if None.
  """
  made = table.Table(box=_RULE, show_edge=False, padding=(0, 1, 0, 0))
  for i, column in enumerate(rows[0]):
    # As Text, because a string's [brackets] would be read as markup.
    made.add_column(
      text.Text(column),
      justify='left' if i < names else 'right',
      no_wrap=True,
    )
  for row in rows:
    made.add_row(*(text.Text(cell) for cell in row.values()))
  file = sys.stdout if file is None else file
  file.write(_ascii(lambda out: out.print(made)))


def render(rows: Sequence[Row], *, label: str, device: str = '') -> str:
  """Returns what `print_table` writes to a file: ASCII, 100 columns."""
  return _ascii(lambda out: _draw(out, rows, label, device))


def sparkline(values: Sequence[float]) -> str:
  """One bar a value, for values from 0 to 1."""
  top = len(_BARS) - 1
  return ''.join(_BARS[round(min(max(v, 0), 1) * top)] for v in values)


def _ascii(draw: Callable[[console.Console], None]) -> str:
  file = io.StringIO()
  plain = console.Console(
    file=file,
    width=_WIDTH,
    force_terminal=False,
    color_system=None,
    highlight=False,
  )
  draw(plain)
  # Cells are padded to their columns; a file wants no trailing blanks.
  return ''.join(f'{line.rstrip()}\n' for line in file.getvalue().splitlines())


def _draw(
  out: console.Console, rows: Sequence[Row], label: str, device: str
) -> None:
  if label not in results.LABELS:
    known = ', '.join(results.LABELS)
    raise ValueError(f'label: {label!r} is not one of {known}')
  if not rows:
    raise ValueError('rows: expected at least one, got none')
  for i, row in enumerate(rows):
    if 'drafter' not in row:
      raise ValueError(f"row {i}: 'drafter' is missing")
  varied, fixed = _settings(rows)
  _say(out, f'{label} on {device}' if device else label)
  if fixed:
    _say(out, fixed)
  out.print()
  out.print(_decoding(rows, varied))
  for key, note in _NOTES.items():
    if any(key in row for row in rows):
      _say(out, note)
  drafted = [row for row in rows if row.get('acceptance_by_position')]
  if drafted:
    most = max(len(row['acceptance_by_position']) for row in drafted)
    shown = min(most, _POSITIONS)
    some = f', first {shown} of {most}' if shown < most else ''
    out.print()
    _say(out, f'accepted at each position, % of rounds{some}')
    out.print()
    bars = out.is_terminal and out.width >= _WIDTH
    out.print(_acceptance(drafted, varied, shown, bars))


def _say(out: console.Console, line: str) -> None:
  # As Text, because a string's [brackets] would be read as markup.
  out.print(text.Text(line, 'dim'))


def _settings(rows: Sequence[Row]) -> tuple[list[str], str]:
  """Splits the settings into those that vary and a line on the others."""
  present = [key for key in _SETTINGS if any(key in row for row in rows)]
  varied = [k for k in present if len({repr(r.get(k)) for r in rows}) > 1]
  fixed = [f'{k} {rows[0][k]}' for k in present if k not in varied]
  return varied, ', '.join(fixed)


def _decoding(rows: Sequence[Row], varied: Sequence[str]) -> table.Table:
  columns = {
    'tokens/round': _tokens_per_round,
    'no loops': _without_loops,
    'tokens/s': lambda row: _number(row, 'tokens_per_s', '.1f'),
    'speed-up': _speedup,
    'J/token': lambda row: _number(row, 'joules_per_token', '.3g'),
    'exact': _exact,
    'ties': lambda row: _number(row, 'ties', '.0f'),
  }
  # A column that no row can fill is left out.
  columns = {
    name: cell
    for name, cell in columns.items()
    if any(cell(row) != '-' for row in rows)
  }
  made = _table(varied)
  for name in columns:
    made.add_column(name, justify='right', no_wrap=True)
  for row in rows:
    complete = row.get('exact') == row.get('total')
    made.add_row(
      *_names(row, varied),
      *(cell(row) for cell in columns.values()),
      style=None if complete else 'yellow',
    )
  return made


def _acceptance(
  rows: Sequence[Row], varied: Sequence[str], shown: int, bars: bool
) -> table.Table:
  made = _table(varied)
  for j in range(shown):
    made.add_column(str(j + 1), justify='right', no_wrap=True)
  if bars:
    made.add_column('')
  for row in rows:
    by_position = row['acceptance_by_position'][:shown]
    cells = [f'{100 * p:.0f}' for p in by_position]
    cells += [''] * (shown - len(cells))
    bar = [sparkline(by_position)] if bars else []
    made.add_row(*_names(row, varied), *cells, *bar)
  return made


def _table(varied: Sequence[str]) -> table.Table:
  made = table.Table(box=_RULE, show_edge=False, padding=(0, 1, 0, 0))
  made.add_column('drafter', no_wrap=True)
  for key in varied:
    made.add_column(_SHORT.get(key, key), overflow='fold')
  return made


def _names(row: Row, varied: Sequence[str]) -> list[text.Text]:
  keys = ('drafter', *varied)
  return [text.Text(str(row.get(key, '-'))) for key in keys]


def _tokens_per_round(row: Row) -> str:
  value = _number(row, 'tokens_per_round', '.2f')
  low = _number(row, 'tokens_per_round_low', '.2f')
  high = _number(row, 'tokens_per_round_high', '.2f')
  return value if '-' in (low, high) else f'{value} \\[{low}, {high}]'


def _speedup(row: Row) -> str:
  value = _number(row, 'speedup_vs_plain', '.2f', 'x')
  low = _number(row, 'speedup_low', '.2f')
  high = _number(row, 'speedup_high', '.2f')
  return value if '-' in (low, high) else f'{value} \\[{low}, {high}]'


def _without_loops(row: Row) -> str:
  value = _number(row, 'tokens_per_round_nonrepetitive', '.2f')
  looping = _number(row, 'repetitive', '.0f')
  return value if looping == '-' else f'{value} ({looping})'


def _exact(row: Row) -> str:
  if row.get('exact') is None or row.get('total') is None:
    return '-'
  return f'{row["exact"]}/{row["total"]}'


def _number(row: Row, key: str, form: str, unit: str = '') -> str:
  value = row.get(key)
  return '-' if value is None else f'{value:{form}}{unit}'
