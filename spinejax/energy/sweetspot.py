"""SweetSpot: the energy of one model's requests from the two lengths alone.

arXiv 2602.05695 (ICPE 2026): joules per output token are linear in I / O,
I^2 / O, I, O and a constant, fitted for each model by itself. Here in joules
of a request; with relative weights both are the same fit. The form was
reconstructed: only its quadratic term is public.
"""

from __future__ import annotations

import numpy as np

from spinejax.energy import fit
from spinejax.energy.cells import Cells
from spinejax.errors import InputError

NAMES = ('I', 'I^2', 'I O', 'O^2', 'O')


class SweetSpot:
  """A law for each model; scikit-learn's `fit` and `predict`.

  Attributes:
    weights: one of `fit.WEIGHTS`.
    coef_: coefficients [J] of `NAMES` by model, after `fit`.
  """

  def __init__(self, weights: str = 'relative'):
    fit.check_weights(weights)
    self.weights = weights
    self.coef_: dict[str, np.ndarray] = {}

  def columns(self, cells: Cells) -> np.ndarray:
    """The terms [N, J] without their coefficients."""
    I_N, O_N, cached_N = cells.input_N, cells.output_N, cells.cached_N
    return np.stack(
      [I_N - cached_N, I_N**2 - cached_N**2, I_N * O_N, O_N**2, O_N], axis=1
    )

  def fit(self, cells: Cells, joules_N) -> SweetSpot:
    """Fits each model of the cells.

    Raises:
      InputError: see `fit.least_squares`; the line starts with the model.
    """
    joules_N = fit.check_joules(joules_N, len(cells))
    columns_NJ = self.columns(cells)
    self.coef_ = {}
    for model in cells.models:
      rows_N = cells.model_N == model
      try:
        self.coef_[model] = fit.least_squares(
          columns_NJ[rows_N], joules_N[rows_N], NAMES, self.weights
        )
      except InputError as error:
        raise InputError(f'{model}: {error}') from None
    return self

  def predict(self, cells: Cells) -> np.ndarray:
    """Joules [N] of each request.

    Raises:
      InputError: a model that was not fitted; this law has no shape to go by.
    """
    for model in cells.models:
      if model not in self.coef_:
        raise InputError(f'SweetSpot was not fitted to {model!r}')
    coef_NJ = np.stack([self.coef_[model] for model in cells.model_N.tolist()])
    return np.sum(self.columns(cells) * coef_NJ, axis=1)
