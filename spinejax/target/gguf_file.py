"""Reading a target from one GGUF file (llama.cpp's format)."""

import dataclasses
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize

from spinejax.errors import InputError
from spinejax.target.assemble import (
  checked_fetch,
  layer_from_tensors,
  refuse_unread,
)
from spinejax.target.config import (
  FAMILIES,
  RopeScaling,
  TargetConfig,
  rope_frequencies,
)
from spinejax.target.model import TargetParams
from spinejax.target.parse import understood

# A layer's tensors as llama.cpp names them, by their Hugging Face names.
_LAYER_NAMES = {
  'input_layernorm': 'attn_norm',
  'post_attention_layernorm': 'ffn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
}


class _Reader(gguf.GGUFReader):
  """Reads through a plain array: it takes several views of every token, and
  those of a memmap make opening a file three times as slow."""

  @property
  def data(self) -> np.ndarray:
    return self._bytes

  @data.setter
  def data(self, memmap: np.memmap) -> None:
    self._bytes = np.asarray(memmap)


def open_gguf(path: pathlib.Path) -> tuple[gguf.GGUFReader, dict]:
  """The reader of a GGUF file and its metadata as plain values.

  Raises:
    InputError: the file is missing, truncated or not GGUF.
  """
  if not path.is_file():
    raise InputError(f'{path}: no such file')
  try:
    reader = _Reader(str(path))
    fields = {k: f.contents() for k, f in reader.fields.items()}
  except Exception as error:  # the reader fails in many ways on bad bytes
    raise InputError(
      f'{path}: not a complete GGUF file ({type(error).__name__}: {error})'
    ) from None
  return reader, fields


def config_of_gguf(fields: dict, names: set[str], source: str) -> TargetConfig:
  """Shape from GGUF metadata and the names of the tensors.

  Raises:
    InputError: the architecture is unknown or a field is missing.
  """
  with understood(source):
    return _config_of_gguf(fields, names, source)


def _config_of_gguf(fields: dict, names: set[str], source: str) -> TargetConfig:
  arch = fields.get('general.architecture')
  if arch not in FAMILIES:
    raise InputError(
      f'{source}: architecture {arch!r} is not supported; expected one of '
      f'{", ".join(FAMILIES)}'
    )

  def field(key, default=None):
    value = fields.get(f'{arch}.{key}', default)
    if value is None:
      raise InputError(f'{source}: metadata {arch}.{key} is missing')
    return value

  if 'tokenizer.ggml.tokens' not in fields:
    raise InputError(f'{source}: metadata tokenizer.ggml.tokens is missing')
  heads, width = field('attention.head_count'), field('embedding_length')
  head_dim = field('attention.key_length', width // heads)
  if field('rope.dimension_count', head_dim) != head_dim:
    raise InputError(f'{source}: partial rotary embeddings are not supported')
  kind = fields.get(f'{arch}.rope.scaling.type', 'none')
  if kind != 'none':
    raise InputError(f'{source}: rope scaling {kind!r} is not supported')
  return TargetConfig(
    family=arch,
    vocab=len(fields['tokenizer.ggml.tokens']),
    width=width,
    layers=field('block_count'),
    heads=heads,
    kv_heads=field('attention.head_count_kv', heads),
    head_dim=head_dim,
    ffn=field('feed_forward_length'),
    # Stored in float32: the shortest decimal is the number that was meant.
    norm_eps=float(str(np.float32(field('attention.layer_norm_rms_epsilon')))),
    rope_base=field('rope.freq_base', 1e4),
    tied='output.weight' not in names,
    qkv_bias=arch == 'qwen2' or 'blk.0.attn_q.bias' in names,
    qk_norm=arch == 'qwen3' or 'blk.0.attn_q_norm.weight' in names,
    max_position=field('context_length', 8192),
  )


def _unpermute(x: np.ndarray, heads: int) -> np.ndarray:
  """Undoes llama.cpp's row order for interleaved rotation (Llama only)."""
  rows = x.reshape(heads, -1, 2, *x.shape[1:])
  return rows.swapaxes(1, 2).reshape(x.shape)


def read_gguf(path: pathlib.Path) -> tuple[TargetConfig, TargetParams, dict]:
  """Config, float32 NumPy weights and metadata of a GGUF file.

  Quantised tensors are dequantised. Source of the row permutation:
  ggml-org/llama.cpp, convert_hf_to_gguf.py (LlamaModel.permute).

  Raises:
    InputError: the file is broken, or holds what this library cannot run.
  """
  reader, fields = open_gguf(path)
  tensors = {t.name: t for t in reader.tensors}
  cfg = config_of_gguf(fields, set(tensors), path.name)
  if 'rope_freqs.weight' in tensors:
    factors = tensors.pop('rope_freqs.weight')
    cfg = _with_llama3_scaling(cfg, factors, path.name)
  read = set()

  def raw(name: str) -> np.ndarray:
    t = tensors[name]
    read.add(name)
    try:
      x = dequantize(t.data, t.tensor_type)
    except NotImplementedError:
      raise InputError(
        f'{path.name}: tensor {name!r} has type {t.tensor_type.name}, which '
        'cannot be dequantised'
      ) from None
    return x.astype(np.float32, copy=False).reshape(t.shape[::-1].tolist())

  fetch = checked_fetch(raw, path.name)

  def fetch_layer(name: str, shape: tuple[int, ...]) -> np.ndarray:
    _, index, rest = name.split('.', 2)
    module, kind = rest.rsplit('.', 1)
    x = fetch(f'blk.{index}.{_LAYER_NAMES[module]}.{kind}', shape)
    if cfg.family == 'llama' and module == 'self_attn.q_proj':
      x = _unpermute(x, cfg.heads)
    if cfg.family == 'llama' and module == 'self_attn.k_proj':
      x = _unpermute(x, cfg.kv_heads)
    return x

  embed = fetch('token_embd.weight', (cfg.vocab, cfg.width))
  params = TargetParams(
    embed_VD=embed,
    layers=tuple(
      layer_from_tensors(fetch_layer, f'blk.{i}.', cfg)
      for i in range(cfg.layers)
    ),
    norm_D=fetch('output_norm.weight', (cfg.width,)),
    head_VD=embed
    if cfg.tied
    else fetch('output.weight', (cfg.vocab, cfg.width)),
  )
  refuse_unread(tensors.keys() - read, cfg, path.name)
  return cfg, params, fields


def _with_llama3_scaling(cfg, tensor, source: str) -> TargetConfig:
  """Recognises the Llama-3 frequency factors that llama.cpp stores."""
  factors = np.asarray(tensor.data, np.float64).reshape(-1)
  plain = rope_frequencies(cfg.head_dim, cfg.rope_base)
  for factor in (8.0, 32.0):
    scaling = RopeScaling(factor, 1.0, 4.0, 8192)
    scaled = rope_frequencies(cfg.head_dim, cfg.rope_base, scaling)
    if np.allclose(plain / scaled, factors, rtol=1e-3):
      return dataclasses.replace(cfg, rope_scaling=scaling)
  raise InputError(
    f'{source}: rope_freqs.weight is not a Llama-3 scaling (factor 8 or 32)'
  )
