"""Nonnegative least squares for energy laws, and how well they hold.

A law is an object with `fit(cells, joules_N)`, `predict(cells)` and, for the
bootstrap, `columns(cells)` and `coef_`, as in scikit-learn.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from spinejax.energy.cells import Cells
from spinejax.errors import InputError

WEIGHTS = ('relative', 'absolute')
# Smallest over largest singular value of columns of unit length, below which
# their coefficients cannot be told apart.
_COLLINEAR = 1e-6


class Scores(NamedTuple):
  """How well predictions meet joules.

  Attributes:
    r2: of the joules of a request; None where all are equal.
    r2_per_token: of the joules per output token.
    mape: mean absolute error in per cent of the measured joules.
  """

  r2: float | None
  r2_per_token: float | None
  mape: float


class Split(NamedTuple):
  """A fold: what is held out, and which cells are fitted and predicted."""

  name: str
  train_N: np.ndarray
  test_N: np.ndarray


def least_squares(
  columns_NJ: np.ndarray,
  joules_N: np.ndarray,
  names: Sequence[str],
  weights: str = 'relative',
) -> np.ndarray:
  """Coefficients [J], none negative, that minimise the squared error.

  Columns are brought to unit length first, so that units and scales do not
  matter.

  Args:
    weights: 'relative' divides errors by the measured joules, 'absolute' does
      not.
    names: of the columns, for messages.

  Raises:
    InputError: unknown weights, joules that are not positive, fewer cells than
      columns, a column of zeros, or columns that depend on each other.
  """
  check_weights(weights)
  joules_N = check_joules(joules_N, len(columns_NJ))
  if len(joules_N) < len(names):
    raise InputError(
      f'{len(joules_N)} cells for {len(names)} coefficients, expected at least '
      'as many'
    )
  scaled_NJ, target_N, scale_J = _scaled(columns_NJ, joules_N, weights)
  for name, scale in zip(names, scale_J, strict=True):
    if not scale > 0:
      raise InputError(f'column {name} is zero in every cell: drop its term')
  _, size_J, direction_JJ = np.linalg.svd(scaled_NJ, full_matrices=False)
  if size_J[-1] < _COLLINEAR * size_J[0]:
    share_J = np.abs(direction_JJ[-1])
    guilty = [n for n, s in zip(names, share_J, strict=True) if s > 0.1]
    raise InputError(
      f'columns {", ".join(guilty)} are collinear in these cells: their '
      'coefficients cannot be told apart; add models or lengths, or take a '
      'variant with fewer terms'
    )
  return _solve(scaled_NJ, target_N, scale_J)


def _scaled(columns_NJ, joules_N, weights):
  """Weighted columns of unit length, weighted joules, and the lengths."""
  weight_N = 1 / joules_N if weights == 'relative' else np.ones_like(joules_N)
  weighted_NJ = columns_NJ * weight_N[:, None]
  scale_J = np.sqrt(np.sum(weighted_NJ**2, axis=0))
  safe_J = np.where(scale_J > 0, scale_J, 1.0)
  return weighted_NJ / safe_J, joules_N * weight_N, scale_J


def _solve(scaled_NJ, target_N, scale_J):
  size = np.linalg.norm(target_N)
  coef_J, _ = scipy.optimize.nnls(scaled_NJ, target_N / size)
  return coef_J * size / scale_J


def check_weights(weights: str) -> None:
  """Refuses weights that are not known."""
  if weights not in WEIGHTS:
    raise InputError(f'weights = {weights!r}, expected {" or ".join(WEIGHTS)}')


def check_joules(joules_N: Any, cells: int) -> np.ndarray:
  """The joules as float64 [N]; refuses what a meter cannot have measured."""
  joules_N = np.asarray(joules_N, np.float64)
  if joules_N.shape != (cells,):
    raise InputError(
      f'joules have shape {joules_N.shape}, expected one of each of {cells} '
      'cells'
    )
  bad_N = ~(np.isfinite(joules_N) & (joules_N > 0))
  if bad_N.any():
    i = int(bad_N.argmax())
    raise InputError(
      f'joules of cell {i} are {joules_N[i]:g}, expected more than 0'
    )
  return joules_N


def scores(cells: Cells, joules_N, predicted_N) -> Scores:
  """R2 of joules, of joules per output token, and MAPE."""
  joules_N = check_joules(joules_N, len(cells))
  error_N = (predicted_N - joules_N) / joules_N
  return Scores(
    _r2(joules_N, predicted_N),
    _r2(joules_N / cells.output_N, predicted_N / cells.output_N),
    float(100 * np.mean(np.abs(error_N))),
  )


def _r2(true_N, predicted_N) -> float | None:
  spread = np.sum((true_N - true_N.mean()) ** 2)
  if not spread > 0:
    return None
  return float(1 - np.sum((true_N - predicted_N) ** 2) / spread)


def leave_one_out(cells: Cells, what: str = 'model') -> list[Split]:
  """One fold a model, or a family: it is predicted by a fit to all others.

  Raises:
    InputError: fewer than two of them.
  """
  group_N = {'model': cells.model_N, 'family': cells.family_N}[what]
  names = list(dict.fromkeys(group_N.tolist()))
  if len(names) < 2:
    raise InputError(
      f'leave one {what} out: {len(names)} {what} in the cells, expected at '
      'least 2'
    )
  return [Split(n, group_N != n, group_N == n) for n in names]


def extrapolation(
  cells: Cells, fit_to: int = 1024, predict_from: int = 4096
) -> list[Split]:
  """Short prompts are fitted, long ones predicted.

  Raises:
    InputError: there are no cells on one of the two sides.
  """
  train_N = cells.input_N <= fit_to
  test_N = cells.input_N >= predict_from
  for side_N, words in (
    (train_N, f'at most {fit_to}'), (test_N, f'at least {predict_from}'),
  ):  # fmt: skip
    if not side_N.any():
      raise InputError(
        f'extrapolation: no cell has an input of {words} tokens, expected some'
      )
  return [Split(f'input >= {predict_from}', train_N, test_N)]


def predict_held_out(
  law, cells: Cells, joules_N, splits: Sequence[Split]
) -> tuple[np.ndarray, np.ndarray]:
  """Predictions of what each fold holds out.

  Returns:
    Joules [N], NaN where no fold predicts, and a mask of where one does.

  Raises:
    InputError: a fold cannot be fitted; the line starts with its name.
  """
  joules_N = check_joules(joules_N, len(cells))
  predicted_N = np.full(len(cells), np.nan)
  for split in splits:
    one = copy.copy(law)
    try:
      one.fit(cells[split.train_N], joules_N[split.train_N])
    except InputError as error:
      raise InputError(f'without {split.name}: {error}') from None
    predicted_N[split.test_N] = one.predict(cells[split.test_N])
  return predicted_N, np.isfinite(predicted_N)


def bootstrap(
  law, cells: Cells, joules_N, resamples: int = 1000, seed: int = 0
) -> np.ndarray:
  """Coefficients [resamples, J] of fits to models drawn with replacement.

  Models are drawn, not cells: the cells of one model share its error.

  Raises:
    InputError: fewer than three models.
  """
  joules_N = check_joules(joules_N, len(cells))
  rows = [np.flatnonzero(cells.model_N == name) for name in cells.models]
  if len(rows) < 3:
    raise InputError(
      f'bootstrap over models: {len(rows)} in the cells, expected at least 3'
    )
  columns_NJ = law.columns(cells)
  rng = np.random.default_rng(seed)
  return np.stack(
    [
      _refit(columns_NJ[drawn_N], joules_N[drawn_N], law.weights)
      for drawn_N in _draws(rng, rows, resamples)
    ]
  )


def _draws(rng, rows, resamples) -> Iterator[np.ndarray]:
  for _ in range(resamples):
    drawn_M = rng.integers(0, len(rows), len(rows))
    yield np.concatenate([rows[m] for m in drawn_M])


def _refit(columns_NJ, joules_N, weights):
  # A draw of alike models may leave columns dependent: what the nonnegative
  # solver then takes is part of the spread.
  scaled_NJ, target_N, scale_J = _scaled(columns_NJ, joules_N, weights)
  return _solve(scaled_NJ, target_N, np.where(scale_J > 0, scale_J, np.inf))
