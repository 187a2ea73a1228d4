"""SpecForge's DSpine, and the release of its authors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
  dspine,
)
from spinejax.drafters.layout import (
  Layout,
  Tensors,
  backbone_params,
  backbone_tensors,
  fields_of,
)
from spinejax.drafters.settings import (
  Fields,
  backbone_config,
  backbone_settings,
  section,
)
from spinejax.errors import InputError


def _config(
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
    **fields_of(base) | {'causal': True},
    rank=fields.integer('transfer_rank', R),
    message=fields.integer('message_size', M),
    candidates=fields.integer('top_k', 16),
    refine=fields.boolean('refine') is not False,
  )


def _settings(cfg: DSpineConfig) -> dict[str, Any]:
  if not cfg.causal:  # read again, it would be
    raise InputError(
      f'causal = {cfg.causal}: DSpine is causal inside the block'
    )
  own = {
    'transfer_rank': cfg.rank,
    'message_size': cfg.message,
    'top_k': cfg.candidates,
  }
  if not cfg.refine:  # ours: the published method always does
    own['refine'] = False
  return backbone_settings(cfg) | {'dspine_config': own}


def _params(tensors: Tensors, cfg: DSpineConfig) -> DSpineParams:
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


def _tensors(params: DSpineParams) -> dict[str, Any]:
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


LAYOUT = Layout(
  ('DSpineDraftModel',), dspine, _config, _settings, _params, _tensors
)
