"""Published checkpoints in memory: checked tensors, and z-lab's DFlash names
of the backbone that every method has."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.base import Drafter
from spinejax.errors import InputError
from spinejax.target.assemble import (
  checked_fetch,
  layer_from_tensors,
  layer_to_tensors,
)


def is_finite(x: np.ndarray) -> bool:
  """Whether every value is finite."""
  with np.errstate(all='ignore'):
    # Far cheaper than looking at each; a finite sum has finite terms.
    if np.isfinite(np.sum(x, dtype=np.float32)):
      return True
  return bool(np.isfinite(x).all())


class Tensors:
  """Named tensors, checked when they are fetched.

  Args:
    get: returns a tensor by name.
    names: the tensors there are.
    source: what errors call the checkpoint.
  """

  def __init__(
    self,
    get: Callable[[str], np.ndarray],
    names: Iterable[str],
    source: str,
  ):
    self._get, self._fetch = get, checked_fetch(get, source)
    self._names, self._read = frozenset(names), set()
    self.source = source

  def __contains__(self, name: str) -> bool:
    return name in self._names

  def shape(self, name: str, ndim: int) -> tuple[int, ...]:
    """Shape of a tensor from which the config is completed."""
    shape = self._get(name).shape if name in self else None
    if shape is None or len(shape) != ndim:
      raise InputError(
        f'sizes come from tensor {name!r}, which '
        f'{"is missing" if shape is None else f"has shape {shape}"}'
      )
    return shape

  def __call__(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor; raises InputError if it is missing or not as expected."""
    x = self._fetch(name, shape)
    if not is_finite(x):
      raise InputError(
        f'{self.source}: tensor {name!r} has values that are not finite'
      )
    self._read.add(name)
    return x

  def finish(self) -> None:
    """Refuses tensors that nothing has read: another method's weights."""
    unread = self._names - self._read
    if unread:
      raise InputError(
        f'{self.source}: tensor {min(unread)!r} is not part of this method '
        f'({len(unread)} such tensors)'
      )


@dataclasses.dataclass(frozen=True)
class Layout:
  """How one method is laid out.

  Attributes:
    architectures: its names in `architectures`; the first is written.
    drafter: cfg -> Drafter.
    config: (config.json, tensors, layers of the target or None) -> cfg.
    settings: cfg -> config.json, without `architectures`.
    params: (tensors, cfg) -> NumPy weights.
    tensors: weights -> named tensors.
  """

  architectures: tuple[str, ...]
  drafter: Callable[[Any], Drafter]
  config: Callable[[Mapping[str, Any], Tensors, int | None], Any]
  settings: Callable[[Any], dict[str, Any]]
  params: Callable[[Tensors, Any], Any]
  tensors: Callable[[Any], dict[str, Any]]


def backbone_params(tensors: Tensors, cfg: BackboneConfig) -> BackboneParams:
  """Weights of the backbone, NumPy, dtype as stored."""
  D = cfg.width
  return BackboneParams(
    fc_DP=tensors('fc.weight', (D, len(cfg.taps) * D)),
    hidden_norm_D=tensors('hidden_norm.weight', (D,)),
    layers=tuple(
      layer_from_tensors(tensors, f'layers.{i}.', cfg)
      for i in range(cfg.layers)
    ),
    norm_D=tensors('norm.weight', (D,)),
    mask_D=tensors('mask_embedding', (D,))
    if 'mask_embedding' in tensors
    else None,
  )


def backbone_tensors(params: BackboneParams) -> dict[str, Any]:
  """The inverse of `backbone_params`."""
  tensors = {
    'fc.weight': params.fc_DP,
    'hidden_norm.weight': params.hidden_norm_D,
    'norm.weight': params.norm_D,
  }
  for i, layer in enumerate(params.layers):
    tensors |= layer_to_tensors(layer, f'layers.{i}.')
  if params.mask_D is not None:
    tensors['mask_embedding'] = params.mask_D
  return tensors


def fields_of(cfg: BackboneConfig) -> dict[str, Any]:
  """A backbone's config as arguments of that of a method built on it."""
  return {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)}
