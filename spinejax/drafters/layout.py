"""Published checkpoints in memory: tensor names, and the methods known.

z-lab's DFlash names, and SpecForge's additions for DSpine.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.base import Drafter
from spinejax.drafters.dflash import dflash
from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
  dspine,
)
from spinejax.drafters.settings import (
  Fields,
  backbone_config,
  backbone_settings,
  section,
)
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
    architecture: its name in `architectures`.
    drafter: cfg -> Drafter.
    config: (config.json, tensors, layers of the target or None) -> cfg.
    settings: cfg -> config.json, without `architectures`.
    params: (tensors, cfg) -> NumPy weights.
    tensors: weights -> named tensors.
  """

  architecture: str
  drafter: Callable[[Any], Drafter]
  config: Callable[[Mapping[str, Any], Tensors, int | None], Any]
  settings: Callable[[Any], dict[str, Any]]
  params: Callable[[Tensors, Any], Any]
  tensors: Callable[[Any], dict[str, Any]]


def layout_of(hf: Mapping[str, Any]) -> Layout:
  """The layout that `architectures` names."""
  named = hf.get('architectures') or []
  for layout in LAYOUTS.values():
    if named == [layout.architecture]:
      return layout
  known = ', '.join(layout.architecture for layout in LAYOUTS.values())
  raise InputError(
    f'architectures {named} are not supported; expected one of {known}'
  )


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


def _dflash_config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> BackboneConfig:
  del tensors
  return backbone_config(hf, target_layers)


def _dspine_config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> DSpineConfig:
  own = section(hf, 'dspine_config')
  if not own:
    # The authors' release does not state these; its converter in SpecForge
    # sets them so whatever the config says.
    dflash_config = section(hf, 'dflash_config') | {'block_size': 16}
    hf = {**hf, 'dflash_config': dflash_config, 'layer_types': None}
  base = backbone_config(hf, target_layers)
  if base.causal is False:
    raise InputError('is_causal false: DSpine is causal inside the block')
  M, R = tensors.shape('injection.message.weight', 2)
  fields = Fields(own)
  return DSpineConfig(
    **{f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    | {'causal': True},
    rank=fields.integer('transfer_rank', R),
    message=fields.integer('message_size', M),
    candidates=fields.integer('top_k', 16),
  )


def _dspine_settings(cfg: DSpineConfig) -> dict[str, Any]:
  return backbone_settings(cfg) | {
    'dspine_config': {
      'transfer_rank': cfg.rank,
      'message_size': cfg.message,
      'top_k': cfg.candidates,
    }
  }


def _dspine_params(tensors: Tensors, cfg: DSpineConfig) -> DSpineParams:
  D, R, M = cfg.width, cfg.rank, cfg.message

  def each_layer(part: str, *shape: int) -> tuple[np.ndarray, ...]:
    return tuple(
      tensors(f'injection.{part}.{i}.weight', shape) for i in range(cfg.layers)
    )

  return DSpineParams(
    backbone=backbone_params(tensors, cfg),
    injection=Injection(
      readouts_RD=each_layer('readouts', R, D),
      writes_DM=each_layer('writes', D, M),
      message_MR=tensors('injection.message.weight', (M, R)),
      receiver_MR=tensors('injection.receiver_gate.weight', (M, R)),
      predecessor_MR=tensors('injection.predecessor_gate.weight', (M, R)),
      bias_M=tensors('injection.bias', (M,)),
    ),
    codes_VR=tensors('transfer_codes', (cfg.vocab, R)),
  )


def _dspine_tensors(params: DSpineParams) -> dict[str, Any]:
  inj = params.injection
  tensors = backbone_tensors(params.backbone) | {
    'injection.message.weight': inj.message_MR,
    'injection.receiver_gate.weight': inj.receiver_MR,
    'injection.predecessor_gate.weight': inj.predecessor_MR,
    'injection.bias': inj.bias_M,
    'transfer_codes': params.codes_VR,
  }
  for i, (read, write) in enumerate(
    zip(inj.readouts_RD, inj.writes_DM, strict=True)
  ):
    tensors[f'injection.readouts.{i}.weight'] = read
    tensors[f'injection.writes.{i}.weight'] = write
  return tensors


# Method -> layout; a new drafter with weights is one more entry.
LAYOUTS = {
  'dflash': Layout(
    'DFlashDraftModel',
    dflash,
    _dflash_config,
    backbone_settings,
    backbone_params,
    backbone_tensors,
  ),
  'dspine': Layout(
    'DSpineDraftModel',
    dspine,
    _dspine_config,
    _dspine_settings,
    _dspine_params,
    _dspine_tensors,
  ),
}
