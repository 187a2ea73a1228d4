"""The table that energy laws are fitted to: one request of one model a row.

Letters of the array names, here and in the laws: N cells (rows), J columns of
a law, M models.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.errors import InputError
from spinejax.target.config import TargetConfig

_NUMBERS = {
  # column: the least it may be
  'input': 1, 'output': 1, 'layers': 1, 'width': 1, 'heads': 1, 'kv_heads': 1,
}  # fmt: skip
NEEDED = ('model', *_NUMBERS)


@dataclasses.dataclass(frozen=True)
class Cells:
  """Requests, and the shapes of the models that they ran on.

  Attributes:
    model_N, family_N: names.
    input_N, output_N: tokens of the prompt and of the answer.
    cached_N: of the prompt, tokens whose keys and values are there already.
    layers_N, width_N: L and D.
    kv_ratio_N: key/value heads over query heads (1: multi-head attention).
    kv_width_N: width of the keys of a token in one layer, G x C.
    vocab_N: V; NaN where it is not known.
  """

  model_N: np.ndarray
  family_N: np.ndarray
  input_N: np.ndarray
  output_N: np.ndarray
  cached_N: np.ndarray
  layers_N: np.ndarray
  width_N: np.ndarray
  kv_ratio_N: np.ndarray
  kv_width_N: np.ndarray
  vocab_N: np.ndarray

  def __len__(self) -> int:
    return len(self.model_N)

  def __getitem__(self, rows_N) -> Cells:
    """The cells that a mask or an array of indices picks."""
    fields = dataclasses.fields(self)
    return Cells(**{f.name: getattr(self, f.name)[rows_N] for f in fields})

  @property
  def models(self) -> list[str]:
    """Names of the models, each once, in order of appearance."""
    return list(dict.fromkeys(self.model_N.tolist()))


def architecture(cfg: TargetConfig) -> dict[str, int]:
  """The columns that a table needs of a model's shape."""
  names = ('layers', 'width', 'heads', 'kv_heads', 'head_dim', 'vocab', 'ffn')
  return {name: getattr(cfg, name) for name in names}


def cells_of(rows: Sequence[Mapping[str, Any]], where: str = 'row {}') -> Cells:
  """Checks rows and puts them in arrays.

  Args:
    rows: each has `model, input, output, layers, width, heads, kv_heads`, and
      may have `family` (the model's name stands in), `cached` (0), `head_dim`
      (width / heads) and `vocab`. Text of numbers is taken, too.
    where: how a message calls a row by its number, from 0.

  Raises:
    InputError: no rows, a missing column, or a value that cannot be, named
      with its row.
  """
  if not rows:
    raise InputError('no cells, expected at least one row')
  return _stack([_one(row, where.format(i)) for i, row in enumerate(rows)])


def joules_of(
  rows: Sequence[Mapping[str, Any]], where: str = 'row {}'
) -> np.ndarray:
  """The column `joules` [N], of one request each.

  Raises:
    InputError: missing, not a number, zero or negative: a meter that measured
      nothing must not look like a model that needs nothing.
  """
  return np.array(
    [
      _number(row, 'joules', where.format(i), 0.0, beyond=True)
      for i, row in enumerate(rows)
    ]
  )


def read_csv(path: str | os.PathLike[str]) -> tuple[Cells, np.ndarray]:
  """Cells and joules of a CSV with one request a line and a header.

  Columns are those of `cells_of`, and `joules`; others are ignored.

  Raises:
    InputError: no such file, missing columns, or a bad value with its line.
  """
  try:
    with open(path, encoding='utf-8-sig', newline='') as file:
      reader = csv.DictReader(file)
      names = [name.strip() for name in reader.fieldnames or ()]
      reader.fieldnames = names
      missing = [n for n in (*NEEDED, 'joules') if n not in names]
      if missing:
        raise InputError(
          f'{path}: no column {", ".join(missing)}; expected '
          f'{", ".join((*NEEDED, "joules"))}'
        )
      lines = [(reader.line_num, row) for row in reader]
  except OSError as error:
    raise InputError(f'{path}: {error.strerror}') from None
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(f'{path}: not a CSV in UTF-8: {error}') from None
  if not lines:
    raise InputError(f'{path}: no rows below the header')
  for number, row in lines:
    if None in row or None in row.values():
      raise InputError(
        f'{path}, line {number}: expected {len(names)} values, as the header'
      )
  cells, joules = [], []
  for number, row in lines:
    where = f'{path}, line {number}'
    cells.append(_one(row, where))
    joules.append(_number(row, 'joules', where, 0.0, beyond=True))
  return _stack(cells), np.array(joules)


def _one(row: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The values of one cell by field of `Cells`, without the letter."""
  for name in NEEDED:
    if row.get(name) in (None, ''):
      raise InputError(f'{where}: {name} is missing')
  n = {
    name: _number(row, name, where, least) for name, least in _NUMBERS.items()
  }
  if n['kv_heads'] > n['heads']:
    raise InputError(
      f'{where}: kv_heads = {n["kv_heads"]:g}, expected at most heads = '
      f'{n["heads"]:g}'
    )
  head_dim = n['width'] / n['heads']
  if row.get('head_dim') not in (None, ''):
    head_dim = _number(row, 'head_dim', where, 1)
  cached, vocab = 0.0, math.nan
  if row.get('cached') not in (None, ''):
    cached = _number(row, 'cached', where, 0)
    if cached >= n['input']:
      raise InputError(
        f'{where}: cached = {cached:g}, expected less than input = '
        f'{n["input"]:g}: the last prompt token is always read'
      )
  if row.get('vocab') not in (None, ''):
    vocab = _number(row, 'vocab', where, 1)
  return dict(
    model=str(row['model']), family=str(row.get('family') or row['model']),
    input=n['input'], output=n['output'], cached=cached, layers=n['layers'],
    width=n['width'], kv_ratio=n['kv_heads'] / n['heads'],
    kv_width=n['kv_heads'] * head_dim, vocab=vocab,
  )  # fmt: skip


def _stack(rows: list[dict[str, Any]]) -> Cells:
  names = [field.name for field in dataclasses.fields(Cells)]
  return Cells(**{x: np.array([r[x.removesuffix('_N')] for r in rows])
                  for x in names})  # fmt: skip


def _number(
  row: Mapping[str, Any],
  name: str,
  where: str,
  least: float,
  beyond: bool = False,
) -> float:
  """A finite number of at least `least`; with `beyond`, of more than it."""
  value = row.get(name)
  try:
    number = math.nan if isinstance(value, bool) else float(value)
  except (TypeError, ValueError):
    number = math.nan
  expected = f'{"more than" if beyond else "at least"} {least:g}'
  if not math.isfinite(number) or number < least or beyond and number == least:
    raise InputError(
      f'{where}: {name} = {value!r}, expected a number of {expected}'
    )
  return number
