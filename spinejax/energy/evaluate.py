"""How well laws hold, as metric rows: splits, residuals, coefficients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from spinejax.energy import fit
from spinejax.energy.cells import Cells
from spinejax.energy.simple import Simple
from spinejax.energy.sweetspot import SweetSpot
from spinejax.errors import InputError

SPLITS: dict[str, Callable[[Cells], list[fit.Split]]] = {
  'leave_one_model_out': lambda cells: fit.leave_one_out(cells, 'model'),
  'leave_one_family_out': lambda cells: fit.leave_one_out(cells, 'family'),
  'extrapolation': fit.extrapolation,
}


def by_split(
  law: Simple, cells: Cells, joules_N
) -> tuple[list[dict[str, Any]], list[str]]:
  """Scores of a law in sample and of what it did not see.

  Returns:
    A row for each split that can be made, and why others cannot.
  """
  own = dict(law='simple', variant=law.variant, weights=law.weights)
  fitted = law.fit(cells, joules_N)
  rows = [own | _scored('in_sample', cells, joules_N, fitted.predict(cells))]
  notes = []
  for name, make in SPLITS.items():
    try:
      held_N, there_N = fit.predict_held_out(law, cells, joules_N, make(cells))
    except InputError as error:
      notes.append(f'{law.variant}, {name}: {error}')
      continue
    rows.append(own | _scored(
      name, cells[there_N], joules_N[there_N], held_N[there_N]
    ))  # fmt: skip
  return rows, notes


def sweetspot(
  cells: Cells, joules_N, weights: str = 'relative'
) -> tuple[list[dict[str, Any]], list[str]]:
  """Scores of SweetSpot in sample and towards long prompts; see `by_split`."""
  own = dict(law='sweetspot', weights=weights)
  law, rows, notes = SweetSpot(weights), [], []
  try:
    law.fit(cells, joules_N)
  except InputError as error:
    return [], [f'SweetSpot: {error}']
  rows = [own | _scored('in_sample', cells, joules_N, law.predict(cells))]
  try:
    held_N, there_N = fit.predict_held_out(
      law, cells, joules_N, fit.extrapolation(cells)
    )
  except InputError as error:
    return rows, [f'SweetSpot, extrapolation: {error}']
  rows.append(own | _scored(
    'extrapolation', cells[there_N], joules_N[there_N], held_N[there_N]
  ))  # fmt: skip
  return rows, notes


def without_kv_ratio(cells: Cells) -> Cells:
  """The same cells as if all heads had keys and values of their own: what a
  law that does not know R sees."""
  return dataclasses.replace(cells, kv_ratio_N=np.ones(len(cells)))


def _scored(split: str, cells: Cells, joules_N, predicted_N) -> dict[str, Any]:
  found = fit.scores(cells, joules_N, predicted_N)
  return dict(
    split=split, r2=found.r2, r2_per_token=found.r2_per_token,
    mape=found.mape, models=len(cells.models), cells=len(cells),
  )  # fmt: skip


def residuals(law: Simple, cells: Cells, joules_N) -> list[dict[str, Any]]:
  """Errors of a fitted law by model, by input and by output length.

  Returns:
    Rows with `by`, `which`, `bias` (mean of predicted over measured, less 1,
    in per cent) and `mape`.
  """
  error_N = 100 * (law.predict(cells) / joules_N - 1)
  groups = {
    'model': cells.model_N, 'input': cells.input_N, 'output': cells.output_N
  }  # fmt: skip
  rows = []
  for by, key_N in groups.items():
    for which in dict.fromkeys(key_N.tolist()):
      some = error_N[key_N == which]
      rows.append(dict(
        by=by, which=which if by == 'model' else int(which),
        bias=float(some.mean()), mape=float(np.abs(some).mean()),
        cells=len(some),
      ))  # fmt: skip
  return rows


def coefficients(
  law: Simple, cells: Cells, joules_N, resamples: int, seed: int = 0
) -> list[dict[str, Any]]:
  """Coefficients of a fitted law, and their ratios to that of prefill.

  Intervals are of 95 %, by a bootstrap over models; None with fewer than
  three of them.

  Returns:
    Rows with `term`, `heading`, `value`, `low`, `high`, and those of `ratio`.
  """
  drawn_RJ = None
  if len(cells.models) >= 3:
    drawn_RJ = fit.bootstrap(law, cells, joules_N, resamples, seed)
  rows = []
  for j, term in enumerate(law.terms):
    row = dict(
      variant=law.variant, term=term.name, heading=term.heading,
      value=float(law.coef_[j]), ratio=None,
    )  # fmt: skip
    if law.coef_[0] > 0:
      row['ratio'] = float(law.coef_[j] / law.coef_[0])
    for name in ('low', 'high', 'ratio_low', 'ratio_high'):
      row[name] = None
    if drawn_RJ is not None:
      row |= _interval('', drawn_RJ[:, j])
      if (drawn_RJ[:, 0] > 0).all():
        row |= _interval('ratio_', drawn_RJ[:, j] / drawn_RJ[:, 0])
    rows.append(row)
  return rows


def _interval(prefix: str, drawn_R) -> dict[str, float]:
  low, high = np.quantile(drawn_R, (0.025, 0.975))
  return {f'{prefix}low': float(low), f'{prefix}high': float(high)}


def rescaled(law: Simple, cells: Cells, joules_N) -> list[dict[str, Any]]:
  """How a law fitted elsewhere predicts these joules.

  Returns:
    Rows with `scaled` ('as_is', 'one_scale', 'per_heading'), `scale`, the
    factors that make the relative error least, in the order of the headings,
    and `mape`.
  """
  parts = law.decompose(cells)
  whole_N = law.predict(cells)
  rows = []
  for scaled, columns, names in (
    ('as_is', None, ()),
    ('one_scale', [whole_N], ('all',)),
    ('per_heading', list(parts.values()), tuple(parts)),
  ):
    scale, predicted_N = [], whole_N
    if columns is not None:
      kept = [j for j, column in enumerate(columns) if (column > 0).any()]
      columns_NJ = np.stack([columns[j] for j in kept], axis=1)
      found_J = fit.least_squares(
        columns_NJ, joules_N, [names[j] for j in kept]
      )
      predicted_N = columns_NJ @ found_J
      scale = [0.0] * len(columns)
      for j, value in zip(kept, found_J, strict=True):
        scale[j] = float(value)
    found = fit.scores(cells, joules_N, predicted_N)
    rows.append(dict(
      scaled=scaled, scale=scale, mape=found.mape, r2=found.r2
    ))  # fmt: skip
  return rows
