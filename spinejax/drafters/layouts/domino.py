"""SpecForge's Domino."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.domino import DominoConfig, DominoParams, domino
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


def _config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> DominoConfig:
  del tensors
  own = Fields(section(hf, 'dflash_config'), hf)
  shifted = bool(own.boolean('shift_label'))
  return DominoConfig(
    **fields_of(backbone_config(hf, target_layers, anchor_first=shifted)),
    emb_dim=own.integer('emb_dim'),
    gru_dim=own.integer('gru_hidden_dim'),
    pure_draft_prefix_len=own.integer('pure_draft_prefix_len', 0, least=0),
  )


def _settings(cfg: DominoConfig) -> dict[str, Any]:
  settings = backbone_settings(cfg)
  settings['dflash_config'] |= {
    'projector_type': 'domino',
    'emb_dim': cfg.emb_dim,
    'gru_hidden_dim': cfg.gru_dim,
    'pure_draft_prefix_len': cfg.pure_draft_prefix_len,
    'shift_label': cfg.anchor_first,
  }
  return settings


def _params(tensors: Tensors, cfg: DominoConfig) -> DominoParams:
  D, E, Z = cfg.width, cfg.emb_dim, cfg.gru_dim

  def gates(name: str, inputs: int):
    return tensors(f'prefix_gru.{name}', (3 * Z, inputs)).reshape(3, Z, inputs)

  return DominoParams(
    backbone_params(tensors, cfg),
    input_3ZD=gates('weight_ih_l0', D),
    recurrent_3ZZ=gates('weight_hh_l0', Z),
    down_EI=tensors('embed_proj.0.weight', (E, D + Z)),
    up_VE=tensors('embed_proj.2.weight', (cfg.vocab, E)),
  )


def _tensors(params: DominoParams) -> dict[str, Any]:
  def joined(x_3ZI):
    return x_3ZI.reshape(-1, x_3ZI.shape[-1])

  return backbone_tensors(params.backbone) | {
    'prefix_gru.weight_ih_l0': joined(params.input_3ZD),
    'prefix_gru.weight_hh_l0': joined(params.recurrent_3ZZ),
    'embed_proj.0.weight': params.down_EI,
    'embed_proj.2.weight': params.up_VE,
  }


LAYOUT = Layout(
  ('DominoDraftModel',), domino, _config, _settings, _params, _tensors
)
