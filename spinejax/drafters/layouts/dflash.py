"""z-lab's DFlash."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.backbone import BackboneConfig
from spinejax.drafters.dflash import dflash
from spinejax.drafters.layout import (
  Layout,
  Tensors,
  backbone_params,
  backbone_tensors,
)
from spinejax.drafters.settings import backbone_config, backbone_settings


def _config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> BackboneConfig:
  del tensors
  return backbone_config(hf, target_layers)


LAYOUT = Layout(
  ('DFlashDraftModel',),
  dflash,
  _config,
  backbone_settings,
  backbone_params,
  backbone_tensors,
)
