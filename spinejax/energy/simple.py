"""SIMPLE: one energy law for all dense models, linear in a few coefficients.

The joules of a request are a sum of columns, each the product of lengths and
of the model's shape, with coefficients that all models share. The published
law has four, under three headings: reading the prompt, reading keys and
values, and the next token. Its exact form is not public; the default here is
the best reconstruction, and the others stay within a point of its error. What
matters in all is the ratio R of key/value to query heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from spinejax.energy import fit
from spinejax.energy.cells import Cells
from spinejax.errors import InputError

HEADINGS = ('prefill', 'kv_reads', 'next_token', 'request')


def _read(c: Cells):
  """Prompt tokens that are read, for they are not cached."""
  return c.input_N - c.cached_N


# L layers, D width, R = KV heads / query heads, G x C width of the keys, V
# vocabulary; I prompt and O answer tokens. A token at position t reads t keys:
# over an answer I O + O^2 / 2; over a prompt I^2 / 2, less what is cached.
COLUMNS: Mapping[str, Callable[[Cells], np.ndarray]] = {
  'L D^2 I': lambda c: c.layers_N * c.width_N**2 * _read(c),
  'L D I': lambda c: c.layers_N * c.width_N * _read(c),
  'L D I^2': lambda c: c.layers_N * c.width_N * (c.input_N**2 - c.cached_N**2),
  'R L D I O': lambda c: (
    c.kv_ratio_N * c.layers_N * c.width_N * c.input_N * c.output_N
  ),
  'R L D O^2/2': lambda c: (
    c.kv_ratio_N * c.layers_N * c.width_N * c.output_N**2 / 2
  ),
  'G C L I O': lambda c: c.kv_width_N * c.layers_N * c.input_N * c.output_N,
  'G C L O^2/2': lambda c: c.kv_width_N * c.layers_N * c.output_N**2 / 2,
  'L D^2 O': lambda c: c.layers_N * c.width_N**2 * c.output_N,
  'L D O': lambda c: c.layers_N * c.width_N * c.output_N,
  'D V O': lambda c: c.width_N * c.vocab_N * c.output_N,
  'O': lambda c: c.output_N,
  '1': lambda c: np.ones(len(c)),
}


@dataclasses.dataclass(frozen=True)
class Term:
  """Columns that share a coefficient, and the heading they stand under."""

  heading: str
  columns: tuple[str, ...]

  @property
  def name(self) -> str:
    """As a formula."""
    return ' + '.join(self.columns)

  def __call__(self, cells: Cells) -> np.ndarray:
    total_N = sum(COLUMNS[name](cells) for name in self.columns)
    if not np.isfinite(total_N).all():
      raise InputError(f'term {self.name} needs the column vocab')
    return total_N


def _terms(**headings) -> tuple[Term, ...]:
  return tuple(
    Term(heading, columns if isinstance(columns, tuple) else (columns,))
    for heading, terms in headings.items()
    for columns in terms
  )


_READS = ('R L D I O', 'R L D O^2/2')
_KEYS = ('G C L I O', 'G C L O^2/2')

# Candidates for the published law, the likeliest first; then its default with
# the keys' own width, and `physical`, which counts what four coefficients leave
# out.
VARIANTS: Mapping[str, tuple[Term, ...]] = {
  'kv_split': _terms(
    prefill=['L D^2 I'], kv_reads=list(_READS), next_token=['L D^2 O']
  ),
  'single_kv': _terms(
    prefill=['L D^2 I'], kv_reads=[_READS], next_token=['L D^2 O', 'L D O']
  ),
  'step_cost': _terms(
    prefill=['L D^2 I'], kv_reads=[_READS], next_token=['L D^2 O', 'O']
  ),
  'two_part_prefill': _terms(
    prefill=['L D^2 I', 'L D I'], kv_reads=[_READS], next_token=['L D^2 O']
  ),
  'intercept': _terms(
    prefill=['L D^2 I'], kv_reads=[_READS], next_token=['L D^2 O'],
    request=['1'],
  ),
  'three_term': _terms(
    prefill=['L D^2 I'], kv_reads=[_READS], next_token=['L D^2 O']
  ),
  'quadratic_prefill': _terms(
    prefill=['L D^2 I', 'L D I^2'], kv_reads=[_READS], next_token=['L D^2 O']
  ),
  # R D is the width of the keys only where heads x their width is D.
  'kv_width': _terms(
    prefill=['L D^2 I'], kv_reads=list(_KEYS), next_token=['L D^2 O']
  ),
  'physical': _terms(
    prefill=['L D^2 I', 'L D I^2'], kv_reads=[_KEYS],
    next_token=['L D^2 O', 'D V O'],
  ),
}  # fmt: skip


def terms_of(name: str) -> tuple[Term, ...]:
  """The terms of the variant called `name`.

  Raises:
    InputError: no such variant; the message lists those there are.
  """
  if name not in VARIANTS:
    raise InputError(
      f'variant = {name!r}, expected one of {", ".join(VARIANTS)}'
    )
  return VARIANTS[name]


class Simple:
  """One law for all models; scikit-learn's `fit` and `predict`.

  law = Simple().fit(cells, joules_N)
  law.predict(other_cells)

  Attributes:
    variant: one of `VARIANTS`.
    weights: one of `fit.WEIGHTS`.
    coef_: coefficients [J] in joules per unit of each term, after `fit`.
  """

  def __init__(self, variant: str = 'kv_split', weights: str = 'relative'):
    self.variant, self.weights = variant, weights
    self.terms = terms_of(variant)
    fit.check_weights(weights)
    self.coef_: np.ndarray | None = None

  @property
  def names(self) -> list[str]:
    """The terms, as formulas."""
    return [term.name for term in self.terms]

  def columns(self, cells: Cells) -> np.ndarray:
    """The terms [N, J] without their coefficients."""
    return np.stack([term(cells) for term in self.terms], axis=1)

  def fit(self, cells: Cells, joules_N) -> Simple:
    """Takes the nonnegative coefficients of least squared error.

    Raises:
      InputError: see `fit.least_squares`.
    """
    self.coef_ = fit.least_squares(
      self.columns(cells), joules_N, self.names, self.weights
    )
    return self

  def predict(self, cells: Cells) -> np.ndarray:
    """Joules [N] of each request.

    Raises:
      InputError: the law has no coefficients yet.
    """
    return self.columns(cells) @ self._coef()

  def decompose(self, cells: Cells) -> dict[str, np.ndarray]:
    """Joules [N] by heading; they add up to the prediction."""
    parts_NJ = self.columns(cells) * self._coef()
    found: dict[str, np.ndarray] = {}
    for term, part_N in zip(self.terms, parts_NJ.T, strict=True):
      found[term.heading] = found.get(term.heading, 0) + part_N
    return found

  def _coef(self) -> np.ndarray:
    if self.coef_ is None:
      raise InputError('the law has no coefficients: call fit first')
    return self.coef_


def calibrate(
  cells: Cells,
  joules_N,
  kv_share_N,
  variant: str = 'kv_split',
  split: float = 1.0,
) -> Simple:
  """A law through a few numbers about one model, one coefficient a heading.

  Two requests' joules and the share of key/value reads of one are enough, if
  the requests differ in the prompt tokens that are read. So few numbers cannot
  tell the terms of a heading apart: the first of each gets the coefficient;
  the second of `kv_reads` the `split`-fold of it, and any other is zero.

  Args:
    joules_N: of each request, NaN where it is not known.
    kv_share_N: share of the joules that key/value reads take, NaN where it is
      not known.
    split: 1 counts the reads of the answer's own tokens like all others.

  Raises:
    InputError: the numbers do not determine the coefficients, or only with a
      negative one.
  """
  law = Simple(variant)
  headings = HEADINGS[:3]
  share_JH = np.zeros((len(law.terms), len(headings)))
  met: dict[str, int] = {}
  for j, term in enumerate(law.terms):
    if term.heading in headings:
      more = split if term.heading == 'kv_reads' else 0.0
      first = met.setdefault(term.heading, j) == j
      share_JH[j, headings.index(term.heading)] = 1.0 if first else more
  parts_NH = law.columns(cells) @ share_JH
  joules_N = np.asarray(joules_N, float)
  told_N = np.isfinite(joules_N)
  kv_share_N = np.asarray(kv_share_N, float)
  shared_N = np.isfinite(kv_share_N)
  # Reads less their share of everything are nothing.
  reads_NH = np.array([0.0, 1.0, 0.0]) - kv_share_N[shared_N, None]
  rows_EH = np.concatenate([parts_NH[told_N], reads_NH * parts_NH[shared_N]])
  known_E = np.concatenate([joules_N[told_N], np.zeros(shared_N.sum())])
  scale_H = parts_NH.max(axis=0)
  rows_EH = rows_EH / scale_H
  # Each equation counts alike, whatever its joules.
  size_E = np.linalg.norm(rows_EH, axis=1)
  coef_H, _, rank, _ = np.linalg.lstsq(
    rows_EH / size_E[:, None], known_E / size_E, rcond=1e-9
  )
  if rank < len(headings):
    raise InputError(
      f'these numbers determine {rank} of {len(headings)} coefficients, '
      'expected requests that differ in the prompt tokens read and in those '
      'attended to'
    )
  if (coef_H < 0).any():
    name = headings[int(coef_H.argmin())]
    raise InputError(f'these numbers ask for a negative coefficient of {name}')
  law.coef_ = share_JH @ (coef_H / scale_H)
  return law


def cached_prefix(law: Simple, cells: Cells, cached: int) -> dict[str, float]:
  """What a cached prefix does to one request.

  Args:
    cells: one request.
    cached: tokens of its prompt whose keys and values are kept.

  Returns:
    `joules` without the cache and `joules_cached` with it,
    `prefill_removed` as a share of prefill, and `kv_share` of what remains.
  """
  if not 0 < cached < cells.input_N[0]:
    raise InputError(
      f'cached = {cached}, expected 1..{cells.input_N[0] - 1:g}: the last '
      'prompt token is always read'
    )
  full = law.decompose(dataclasses.replace(cells, cached_N=0 * cells.cached_N))
  rest = law.decompose(
    dataclasses.replace(cells, cached_N=np.array([float(cached)]))
  )
  left = sum(part[0] for part in rest.values())
  return dict(
    joules=float(sum(part[0] for part in full.values())),
    joules_cached=float(left),
    prefill_removed=float(1 - rest['prefill'][0] / full['prefill'][0]),
    kv_share=float(rest['kv_reads'][0] / left),
  )


def cheapest_output(law, cells: Cells) -> np.ndarray:
  """Output lengths [N] at which a token of the answer costs least.

  A short answer carries the whole prompt, a long one its own keys and values.
  Every law here is a + b O + c O^2 in the output O, so the best length is
  sqrt(a / c); infinite where no term grows with O^2. The cells' own outputs do
  not matter.

  Args:
    law: `Simple` or `SweetSpot`, fitted.
  """
  none_N, one_N, two_N = (
    law.predict(dataclasses.replace(cells, output_N=np.full(len(cells), n)))
    for n in (0.0, 1.0, 2.0)
  )
  curve_N = (two_N - 2 * one_N + none_N) / 2
  # Rounding of three nearly equal numbers is no curvature.
  curve_N = np.where(curve_N > 1e-13 * two_N, curve_N, 0.0)
  with np.errstate(divide='ignore'):
    return np.sqrt(none_N / curve_N)
