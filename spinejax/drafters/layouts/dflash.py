"""z-lab's DFlash, and DeepSpec's, a DSpark without heads."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.dflash import dflash
from spinejax.drafters.layout import (
  Layout,
  Tensors,
  backbone_params,
  backbone_tensors,
)
from spinejax.drafters.layouts import dspark
from spinejax.drafters.settings import (
  backbone_config,
  backbone_settings,
  slot_layout_settings,
)


def _config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> BackboneConfig:
  del tensors
  of_dspark = hf['architectures'][0] in dspark.LAYOUT.architectures
  return backbone_config(hf, target_layers, of_dspark or None)


def _settings(cfg: BackboneConfig) -> dict[str, Any]:
  settings = backbone_settings(cfg)
  settings['dflash_config'] |= slot_layout_settings(cfg)
  return settings


def _params(tensors: Tensors, cfg: BackboneConfig) -> BackboneParams:
  if cfg.anchor_first:
    dspark.read_copies(tensors, cfg)
  return backbone_params(tensors, cfg)


LAYOUT = Layout(
  ('DFlashDraftModel',),
  dflash,
  _config,
  _settings,
  _params,
  backbone_tensors,
)
