"""Token codes: the fixed coordinates of DSpine's transfer space.

Principal axes of the row-normalised, centred output head, whitened, then
normalised (sgl-project/SpecForge `specforge/modeling/draft/dspine.py`). Made
once on the host, in float64, and cast once.

The signs of eigenvectors are arbitrary, so trained weights fit one basis
only: a checkpoint stores its basis (D, lambda, mu) and rebuilds the codes from
it and the target's head.
"""

import dataclasses
import hashlib

import numpy as np

from spinejax.errors import InputError

# Coarse enough that rounding in another BLAS does not move a code across a
# step of the grid, fine enough to tell two bases apart.
_HASH_GRID = 2.0**10


@dataclasses.dataclass(frozen=True)
class Basis:
  """Transfer basis of a head, float64: axes D, eigenvalues, mean."""

  axes_DR: np.ndarray
  eigenvalues_R: np.ndarray
  mean_D: np.ndarray


def _unit_rows(head_VD: np.ndarray) -> np.ndarray:
  rows = np.asarray(head_VD, np.float64)
  norm = np.linalg.norm(rows, axis=1, keepdims=True)
  return rows / np.maximum(norm, 1e-12)


def fit_basis(head_VD: np.ndarray, rank: int) -> Basis:
  """The `rank` largest principal axes, eigenvalues ascending.

  Raises:
    InputError: the head has fewer than `rank` directions with variance.
  """
  n = _unit_rows(head_VD)
  mean_D = n.mean(axis=0)
  scatter = n.T @ n - len(n) * np.outer(mean_D, mean_D)
  eigenvalues, axes = np.linalg.eigh(scatter)
  eigenvalues, axes = eigenvalues[-rank:], axes[:, -rank:]
  if len(eigenvalues) < rank or eigenvalues[0] <= 1e-9 * eigenvalues[-1]:
    raise InputError(
      f'rank = {rank} exceeds the rank of the head of shape {head_VD.shape}'
    )
  return Basis(axes, eigenvalues, mean_D)


def token_codes(head_VD: np.ndarray, basis: Basis) -> np.ndarray:
  """Unit codes c_v, float64 [V, R]."""
  c = (_unit_rows(head_VD) - basis.mean_D) @ basis.axes_DR
  c /= np.sqrt(basis.eigenvalues_R)
  norm = np.linalg.norm(c, axis=1, keepdims=True)
  return c / np.maximum(norm, 1e-12)


def codes_hash(codes_VR: np.ndarray) -> str:
  """Identity of a set of codes, 16 hex digits, the same on every machine.

  Hashes the codes rounded to a coarse grid, since their last bits depend on
  the BLAS in use.
  """
  steps = np.rint(np.asarray(codes_VR, np.float64) * _HASH_GRID)
  return hashlib.sha256(steps.astype('<i2').tobytes()).hexdigest()[:16]
