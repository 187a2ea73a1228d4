"""The settings of a published drafter: config.json <-> its frozen config.

Settings that z-lab/dflash `model.py` looks up in `dflash_config` first and
then at the top level are looked up so here. RoPE is read in both spellings.
"""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.backbone import BackboneConfig, tap_ids
from spinejax.errors import InputError
from spinejax.target.config import RopeScaling, rope_of_hf

# What SGLang calls the layout in which the anchor's slot proposes too.
_ANCHOR_FIRST = ('sample_from_anchor', 'query_zero_predicts_next')
_SLIDING, _FULL = 'sliding_attention', 'full_attention'


def section(hf: Mapping[str, Any], name: str) -> dict[str, Any]:
  """An object inside a config; empty if it is absent."""
  value = hf.get(name)
  if not isinstance(value, dict | None):
    raise InputError(f'{name} = {value!r}, expected an object')
  return value or {}


class Fields:
  """Look-ups in several mappings, first to last, that name what is wrong."""

  def __init__(self, *maps: Mapping[str, Any]):
    self._maps = maps

  def get(self, name: str, default: Any = None) -> Any:
    """The first value that is there, as it is; else the default."""
    for fields in self._maps:
      if fields.get(name) is not None:
        return fields[name]
    return default

  def integer(
    self, name: str, default: int | None = None, least: int = 1
  ) -> int:
    """A field that has to be an integer of at least `least`."""
    value = self.get(name, default)
    if value is None:
      raise InputError(f'field {name!r} is missing')
    if type(value) is not int or value < least:
      raise InputError(f'{name} = {value!r}, expected an integer >= {least}')
    return value

  def number(self, name: str, default: float | None = None) -> float | None:
    """A field that has to be a number."""
    value = self.get(name, default)
    if value is not None and type(value) not in (int, float):
      raise InputError(f'{name} = {value!r}, expected a number')
    return None if value is None else float(value)

  def boolean(self, name: str) -> bool | None:
    """A field that has to be true or false."""
    value = self.get(name)
    if not isinstance(value, bool | None):
      raise InputError(f'{name} = {value!r}, expected true or false')
    return value


def backbone_config(
  hf: Mapping[str, Any],
  target_layers: int | None = None,
  anchor_first: bool | None = None,
) -> BackboneConfig:
  """The backbone's part of a published config.json.

  Args:
    target_layers: taken where the config does not tell the target's depth.
    anchor_first: the slot layout, where the method has only one or another
      name for it.

  Raises:
    InputError: a field is missing, malformed, or asks for what is not here.
  """
  top, both = Fields(hf), Fields(section(hf, 'dflash_config'), hf)
  if hf.get('hidden_act', 'silu') != 'silu':
    raise InputError(f'hidden_act {hf["hidden_act"]!r}, expected silu')
  if hf.get('attention_bias'):
    raise InputError('attention_bias true is not supported')
  if anchor_first is None:
    anchor_first = any(both.boolean(name) for name in _ANCHOR_FIRST)
  layers, width = top.integer('num_hidden_layers'), top.integer('hidden_size')
  heads = top.integer('num_attention_heads')
  taps = both.get('target_layer_ids')
  if taps is None:
    taps = tap_ids(top.integer('num_target_layers', target_layers), layers)
  if not isinstance(taps, list | tuple) or any(
    type(t) is not int for t in taps
  ):
    raise InputError(f'target_layer_ids = {taps}, expected integers')
  rope_base, rope_scaling = _rope(hf)
  return BackboneConfig(
    vocab=top.integer('vocab_size'),
    width=width,
    layers=layers,
    heads=heads,
    kv_heads=top.integer('num_key_value_heads', heads),
    head_dim=top.integer('head_dim', width // heads),
    ffn=top.integer('intermediate_size'),
    block=both.integer('block_size', least=1 if anchor_first else 2),
    mask_id=both.integer('mask_token_id', least=0),
    taps=tuple(taps),
    norm_eps=top.number('rms_norm_eps', 1e-6),
    rope_base=rope_base,
    rope_scaling=rope_scaling,
    windows=_windows(top, layers),
    causal=top.boolean('is_causal'),
    embedding_scale=both.number('input_embedding_scale', 1.0),
    output_multiplier=both.number('output_multiplier', 1.0),
    softcap=both.number('final_logit_softcapping'),
    anchor_first=anchor_first,
  )


def _rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  try:
    return rope_of_hf(hf)
  except InputError as error:
    raise InputError(str(error).removeprefix('config.json: ')) from None
  except (KeyError, OverflowError, TypeError, ValueError) as error:
    raise InputError(f'rope parameters: {error!r}') from None


def _windows(top: Fields, layers: int) -> tuple[int | None, ...] | None:
  kinds = top.get('layer_types')
  if kinds is None:
    return None
  fits = isinstance(kinds, list) and len(kinds) == layers
  if not fits or any(kind not in (_FULL, _SLIDING) for kind in kinds):
    raise InputError(
      f'layer_types = {kinds}, expected {layers} of {_FULL}, {_SLIDING}'
    )
  if _SLIDING not in kinds:
    return None
  window = top.integer('sliding_window')
  return tuple(window if kind == _SLIDING else None for kind in kinds)


def backbone_settings(cfg: BackboneConfig) -> dict[str, Any]:
  """The inverse of `backbone_config`, but for the slot layout.

  Raises:
    InputError: the published layout has no words for this config.
  """
  if cfg.qkv_bias or not cfg.qk_norm:
    raise InputError('published drafters have q and k norms and no q, k bias')
  windows = {w for w in cfg.windows or () if w is not None}
  if len(windows) > 1:
    raise InputError(
      f'windows = {cfg.windows}: published drafters have one width for all '
      'sliding layers'
    )
  scaling = cfg.rope_scaling
  own = {'mask_token_id': cfg.mask_id, 'target_layer_ids': list(cfg.taps)}
  if cfg.embedding_scale != 1:
    own['input_embedding_scale'] = cfg.embedding_scale
  if cfg.output_multiplier != 1:
    own['output_multiplier'] = cfg.output_multiplier
  if cfg.softcap is not None:
    own['final_logit_softcapping'] = cfg.softcap
  settings = {
    'model_type': 'qwen3',
    'vocab_size': cfg.vocab,
    'hidden_size': cfg.width,
    'num_hidden_layers': cfg.layers,
    'num_attention_heads': cfg.heads,
    'num_key_value_heads': cfg.kv_heads,
    'head_dim': cfg.head_dim,
    'intermediate_size': cfg.ffn,
    'hidden_act': 'silu',
    'attention_bias': False,
    'rms_norm_eps': cfg.norm_eps,
    'rope_theta': cfg.rope_base,
    'rope_scaling': scaling
    and {
      'rope_type': 'llama3',
      'factor': scaling.factor,
      'low_freq_factor': scaling.low_freq_factor,
      'high_freq_factor': scaling.high_freq_factor,
      'original_max_position_embeddings': scaling.original_max_position,
    },
    'layer_types': [
      _FULL if cfg.window(i) is None else _SLIDING for i in range(cfg.layers)
    ],
    'sliding_window': min(windows, default=None),
    'use_sliding_window': bool(windows),
    'tie_word_embeddings': False,
    'block_size': cfg.block,
    'dflash_config': own,
  }
  if cfg.causal is not None:
    settings['is_causal'] = cfg.causal
  return settings


def slot_layout_settings(cfg: BackboneConfig) -> dict[str, Any]:
  """Fields of `dflash_config` that state the slot layout, for methods that may
  have either."""
  return {_ANCHOR_FIRST[0]: True} if cfg.anchor_first else {}
