"""DeepSpec's DSpark, and SpecForge's, whose settings are in `dflash_config`.

DeepSpec's checkpoints hold copies of the target's embedding and head. They are
read to be compared with the target's, and neither kept nor written.
"""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.backbone import BackboneConfig
from spinejax.drafters.dspark import DSparkConfig, DSparkParams, dspark
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

_MARKOV, _CONFIDENCE = 'markov_head.', 'confidence_head.proj.'
_MIX = {'gated': 'markov_head.gate_proj.', 'rnn': 'markov_head.joint_proj.'}
COPIES = ('embed_tokens.weight', 'lm_head.weight')


def markov_rank(hf: Mapping[str, Any]) -> int:
  """Rank of the Markov head; 0 is a DFlash in DSpark's slot layout."""
  own = Fields(section(hf, 'dflash_config'), hf)
  return own.integer('markov_rank', 0, least=0)


def read_copies(tensors: Tensors, cfg: BackboneConfig) -> None:
  """Checks the shapes of the copies of the target's tables, if there are."""
  for name in COPIES:
    if name in tensors:
      tensors(name, (cfg.vocab, cfg.width))


def _config(
  hf: Mapping[str, Any], tensors: Tensors, target_layers: int | None
) -> DSparkConfig:
  del tensors
  own = Fields(section(hf, 'dflash_config'), hf)
  base = backbone_config(hf, target_layers, anchor_first=True)
  with_markov = own.boolean('confidence_head_with_markov')
  return DSparkConfig(
    **fields_of(base),
    markov_rank=markov_rank(hf),
    markov_head=own.get('markov_head_type', 'vanilla'),
    confidence=bool(own.boolean('enable_confidence_head')),
    confidence_with_markov=True if with_markov is None else with_markov,
  )


def _settings(cfg: DSparkConfig) -> dict[str, Any]:
  settings = backbone_settings(cfg)
  settings['dflash_config'] |= {
    'projector_type': 'dspark',
    'markov_rank': cfg.markov_rank,
    'markov_head_type': cfg.markov_head,
    'enable_confidence_head': cfg.confidence,
    'confidence_head_with_markov': cfg.confidence_with_markov,
  }
  return settings


def _params(tensors: Tensors, cfg: DSparkConfig) -> DSparkParams:
  V, E = cfg.vocab, cfg.markov_rank
  read_copies(tensors, cfg)
  heads = {}
  if cfg.mix_shape is not None:
    mix = _MIX[cfg.markov_head]
    heads |= dict(
      mix_OI=tensors(f'{mix}weight', cfg.mix_shape),
      mix_O=tensors(f'{mix}bias', cfg.mix_shape[:1]),
    )
  if cfg.confidence:
    heads |= dict(
      confidence_1I=tensors(f'{_CONFIDENCE}weight', (1, cfg.confidence_inputs)),
      confidence_1=tensors(f'{_CONFIDENCE}bias', (1,)),
    )
  return DSparkParams(
    backbone_params(tensors, cfg),
    before_VE=tensors(f'{_MARKOV}markov_w1.weight', (V, E)),
    up_VE=tensors(f'{_MARKOV}markov_w2.weight', (V, E)),
    **heads,
  )


def _tensors(params: DSparkParams) -> dict[str, Any]:
  E = params.up_VE.shape[1]
  tensors = backbone_tensors(params.backbone) | {
    f'{_MARKOV}markov_w1.weight': params.before_VE,
    f'{_MARKOV}markov_w2.weight': params.up_VE,
  }
  if params.mix_OI is not None:
    mix = _MIX['gated' if params.mix_OI.shape[0] == E else 'rnn']
    tensors |= {f'{mix}weight': params.mix_OI, f'{mix}bias': params.mix_O}
  if params.confidence_1I is not None:
    tensors |= {
      f'{_CONFIDENCE}weight': params.confidence_1I,
      f'{_CONFIDENCE}bias': params.confidence_1,
    }
  return tensors


LAYOUT = Layout(
  ('DSparkDraftModel', 'Qwen3DSparkModel'),
  dspark,
  _config,
  _settings,
  _params,
  _tensors,
)
