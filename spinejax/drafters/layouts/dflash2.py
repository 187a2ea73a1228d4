"""z-lab's DFlash2."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.dflash2 import (
  Conv,
  DFlash2Config,
  DFlash2Params,
  Selector,
  dflash2,
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
  slot_layout_settings,
)

_SELECTOR = 'candidate_selector.'


def _config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> DFlash2Config:
  del tensors
  own = Fields(section(hf, 'dflash_config'), hf)
  return DFlash2Config(
    **fields_of(backbone_config(hf, target_layers)),
    conv_taps=own.integer('conv_kernel_size'),
    conv_group=own.integer('conv_group_size'),
    selector_rank=own.integer('selector_rank'),
    candidates=own.integer('selector_top_k'),
  )


def _settings(cfg: DFlash2Config) -> dict[str, Any]:
  settings = backbone_settings(cfg)
  settings['dflash_config'] |= slot_layout_settings(cfg) | {
    'conv_kernel_size': cfg.conv_taps,
    'conv_group_size': cfg.conv_group,
    'selector_rank': cfg.selector_rank,
    'selector_top_k': cfg.candidates,
  }
  return settings


def _params(tensors: Tensors, cfg: DFlash2Config) -> DFlash2Params:
  V, D, R = cfg.vocab, cfg.width, cfg.selector_rank
  taps, groups = cfg.conv_taps, D // cfg.conv_group

  def convs(part: str) -> tuple[Conv, ...]:
    names = [f'layers.{i}.{part}_conv.' for i in range(cfg.layers)]
    return tuple(
      Conv(
        tensors(f'{name}base_kernel', (2, taps, D)),
        tensors(
          f'{name}kernel_projection.weight', (2 * taps * groups, D)
        ).reshape(2, taps, groups, D),
      )
      for name in names
    )

  return DFlash2Params(
    backbone=backbone_params(tensors, cfg),
    attention_convs=convs('attention'),
    mlp_convs=convs('mlp'),
    selector=Selector(
      before_VR=tensors(f'{_SELECTOR}predecessor_codebook', (V, R)),
      after_VR=tensors(f'{_SELECTOR}successor_codebook', (V, R)),
      hidden_RD=tensors(f'{_SELECTOR}hidden_projection.weight', (R, D)),
    ),
  )


def _tensors(params: DFlash2Params) -> dict[str, Any]:
  pick = params.selector
  tensors = backbone_tensors(params.backbone) | {
    f'{_SELECTOR}predecessor_codebook': pick.before_VR,
    f'{_SELECTOR}successor_codebook': pick.after_VR,
    f'{_SELECTOR}hidden_projection.weight': pick.hidden_RD,
  }
  for part, convs in (
    ('attention', params.attention_convs),
    ('mlp', params.mlp_convs),
  ):
    for i, conv in enumerate(convs):
      name = f'layers.{i}.{part}_conv.'
      tensors[f'{name}base_kernel'] = conv.base_2WD
      D = conv.dynamic_2WYD.shape[-1]
      tensors[f'{name}kernel_projection.weight'] = conv.dynamic_2WYD.reshape(
        -1, D
      )
  return tensors


LAYOUT = Layout(
  ('DFlash2DraftModel',), dflash2, _config, _settings, _params, _tensors
)
