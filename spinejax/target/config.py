"""Shapes of dense decoder-only transformers: Llama, Qwen2 and Qwen3."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from spinejax.errors import InputError
from spinejax.target.parse import understood

# Architecture names as Hugging Face's config.json and GGUF spell them.
FAMILIES = ('llama', 'qwen2', 'qwen3')
_SIZES = (
  'vocab', 'width', 'layers', 'heads', 'kv_heads', 'head_dim', 'ffn',
  'max_position',
)  # fmt: skip


def _whole(value: Any) -> bool:
  return (
    isinstance(value, numbers.Integral)
    and not isinstance(value, bool)
    and value >= 1
  )


def _positive(value: Any) -> bool:
  return (
    isinstance(value, numbers.Real)
    and not isinstance(value, bool)
    and math.isfinite(value)
    and value > 0
  )


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama-3's frequency-dependent stretching of rotary wavelengths."""

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position: int

  def __post_init__(self):
    for name in ('factor', 'low_freq_factor', 'high_freq_factor'):
      value = getattr(self, name)
      if not _positive(value):
        raise InputError(
          f'rope scaling: {name} = {value!r}; expected a positive number'
        )
    if self.factor < 1:
      raise InputError(
        f'rope scaling: factor = {self.factor!r}; expected at least 1'
      )
    if self.low_freq_factor >= self.high_freq_factor:
      raise InputError(
        f'rope scaling: low_freq_factor = {self.low_freq_factor!r}; expected '
        f'less than high_freq_factor = {self.high_freq_factor!r}'
      )
    if not _whole(self.original_max_position):
      raise InputError(
        f'rope scaling: original_max_position = {self.original_max_position!r}'
        '; expected a positive whole number'
      )


@dataclasses.dataclass(frozen=True)
class TargetConfig:
  """Static shape of a target model; hashable, so it can be a jit constant.

  Attributes:
    family: one of FAMILIES; names the published architecture.
    vocab, width, layers, heads, kv_heads, head_dim, ffn: V, D, L, H, G, C, F.
    norm_eps: epsilon of every RMS norm.
    rope_base: base of the rotary frequencies.
    tied: the output head is the embedding matrix.
    qkv_bias: the query, key and value projections have a bias (Qwen2).
    qk_norm: queries and keys are RMS-normalised per head (Qwen3).
    rope_scaling: Llama-3 scaling, or None.
    max_position: longest context the model was trained for, in tokens.
  """

  family: str
  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  ffn: int
  norm_eps: float = 1e-6
  rope_base: float = 1e4
  tied: bool = False
  qkv_bias: bool = False
  qk_norm: bool = False
  rope_scaling: RopeScaling | None = None
  max_position: int = 8192

  def __post_init__(self):
    if self.family not in FAMILIES:
      raise InputError(
        f'architecture {self.family!r} is not supported; expected one of '
        f'{", ".join(FAMILIES)}'
      )
    for name in _SIZES:
      value = getattr(self, name)
      if not _whole(value):
        raise InputError(
          f'{name} = {value!r}; expected a positive whole number'
        )
    for name in ('norm_eps', 'rope_base'):
      value = getattr(self, name)
      if not _positive(value):
        raise InputError(f'{name} = {value!r}; expected a positive number')
    if self.head_dim % 2:
      raise InputError(
        f'head_dim = {self.head_dim}; expected an even number, for rotary '
        'embeddings turn pairs'
      )
    if self.heads % self.kv_heads:
      raise InputError(
        f'heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}'
      )

  @property
  def group(self) -> int:
    """Query heads that share one key/value head."""
    return self.heads // self.kv_heads

  @property
  def parameters(self) -> int:
    """Number of weights, the tied head counted once."""
    layer = layer_weights(self) + 2 * self.width
    if self.qkv_bias:
      layer += self.head_dim * (self.heads + 2 * self.kv_heads)
    if self.qk_norm:
      layer += 2 * self.head_dim
    embeddings = self.vocab * self.width * (1 if self.tied else 2)
    return self.layers * layer + embeddings + self.width


def layer_weights(shape) -> int:
  """Weights of the matrices of one layer, of a target's or drafter's shape."""
  attention = 2 * shape.head_dim * (shape.heads + shape.kv_heads)
  return shape.width * (attention + 3 * shape.ffn)


def rope_frequencies(
  head_dim: int, base: float, scaling: RopeScaling | None = None
) -> np.ndarray:
  """Rotary frequencies, float64 [C/2], in radians a token."""
  freq = base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
  if scaling is None:
    return freq
  # Llama 3: long wavelengths are stretched by `factor`, short ones kept, and
  # those between interpolated (huggingface/transformers, modeling_rope_utils).
  wavelength = 2 * np.pi / freq
  low = scaling.original_max_position / scaling.low_freq_factor
  high = scaling.original_max_position / scaling.high_freq_factor
  blend = scaling.original_max_position / wavelength - scaling.low_freq_factor
  blend /= scaling.high_freq_factor - scaling.low_freq_factor
  mixed = (1 - blend) * freq / scaling.factor + blend * freq
  return np.where(
    wavelength > low,
    freq / scaling.factor,
    np.where(wavelength < high, freq, mixed),
  )


def rope_of_hf(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """Rotary base and scaling of a Hugging Face config.

  Reads both spellings: `rope_theta` and `rope_scaling` at the top level
  (transformers 4) and `rope_parameters` (transformers 5).

  Raises:
    InputError: the scaling is of a kind this library does not implement.
  """
  field = 'rope_parameters' if hf.get('rope_parameters') else 'rope_scaling'
  rope = hf.get(field) or {}
  if not isinstance(rope, Mapping):
    raise InputError(f'config.json: {field} = {rope!r}; expected an object')
  base = _number(rope if 'rope_theta' in rope else hf, 'rope_theta', 1e4)
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if hf.get('partial_rotary_factor', rope.get('partial_rotary_factor', 1)) != 1:
    raise InputError(
      'config.json: partial_rotary_factor other than 1 is not supported'
    )
  if kind == 'default':
    return base, None
  if kind != 'llama3':
    raise InputError(
      f'config.json: rope scaling {kind!r} is not supported; expected default '
      'or llama3'
    )
  return base, RopeScaling(
    factor=_number(rope, 'factor'),
    low_freq_factor=_number(rope, 'low_freq_factor'),
    high_freq_factor=_number(rope, 'high_freq_factor'),
    original_max_position=_size(rope, 'original_max_position_embeddings'),
  )


def _number(
  hf: Mapping[str, Any], field: str, default: float | None = None
) -> float:
  """A number of a config; only an absent one gives the default."""
  if field not in hf and default is None:
    raise KeyError(field)
  value = hf.get(field, default)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise InputError(f'config.json: {field} = {value!r}; expected a number')
  return float(value)


def _flag(hf: Mapping[str, Any], field: str) -> bool:
  """A boolean of a config; null and absent are false."""
  value = hf.get(field)
  if value is not None and not isinstance(value, bool):
    raise InputError(
      f'config.json: {field} = {value!r}; expected true or false'
    )
  return bool(value)


def _size(hf: Mapping[str, Any], field: str, default: int | None = None) -> int:
  """A positive whole number of a config; null and absent give the default."""
  value = hf.get(field)
  if value is None:
    value = default
  if value is None:
    raise KeyError(field)
  if type(value) is not int or value < 1:
    raise InputError(
      f'config.json: {field} = {value!r}; expected a positive whole number'
    )
  return value


def _has_sliding_layers(hf: Mapping[str, Any], layers: int) -> bool:
  if not _flag(hf, 'use_sliding_window'):
    return False
  if hf.get('layer_types'):
    return 'sliding_attention' in hf['layer_types']
  # transformers 4: Qwen2's layers from max_window_layers on.
  return _size(hf, 'max_window_layers', 28) < layers


def config_of_hf(hf: Mapping[str, Any]) -> TargetConfig:
  """Shape from the contents of a Hugging Face `config.json`.

  Raises:
    InputError: a field is missing, or names something not implemented.
  """
  with understood('config.json'):
    return _config_of_hf(hf)


def _config_of_hf(hf: Mapping[str, Any]) -> TargetConfig:
  family = hf.get('model_type')
  if family not in FAMILIES:
    raise InputError(
      f'config.json: model_type {family!r} is not supported; expected one of '
      f'{", ".join(FAMILIES)}'
    )
  if hf.get('hidden_act', 'silu') != 'silu':
    raise InputError(
      f'config.json: hidden_act {hf["hidden_act"]!r} is not supported; '
      'expected silu'
    )
  if _flag(hf, 'mlp_bias'):
    raise InputError('config.json: mlp_bias true is not supported')
  if hf.get('quantization_config'):
    raise InputError(
      'config.json: quantization_config is not supported; expected float32, '
      'bfloat16 or float16 weights'
    )
  if _flag(hf, 'attention_bias') and family != 'qwen2':
    raise InputError(
      f'config.json: attention_bias true is not supported for {family}'
    )
  try:
    heads, width = _size(hf, 'num_attention_heads'), _size(hf, 'hidden_size')
    layers = _size(hf, 'num_hidden_layers')
    if _has_sliding_layers(hf, layers):
      raise InputError(
        'config.json: sliding-window layers are not supported in a target'
      )
    base, scaling = rope_of_hf(hf)
    return TargetConfig(
      family=family,
      vocab=_size(hf, 'vocab_size'),
      width=width,
      layers=layers,
      heads=heads,
      kv_heads=_size(hf, 'num_key_value_heads', heads),
      head_dim=_size(hf, 'head_dim', width // heads),
      ffn=_size(hf, 'intermediate_size'),
      norm_eps=_number(hf, 'rms_norm_eps', 1e-6),
      rope_base=base,
      rope_scaling=scaling,
      tied=_flag(hf, 'tie_word_embeddings'),
      qkv_bias=family == 'qwen2',
      qk_norm=family == 'qwen3',
      max_position=_size(hf, 'max_position_embeddings', 8192),
    )
  except KeyError as missing:
    raise InputError(f'config.json: field {missing} is missing') from None
