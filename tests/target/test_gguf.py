"""GGUF files agree with the directories they were made from, or are refused.

The files are written as llama.cpp's convert_hf_to_gguf.py does it.
"""

import json
import math

import chex
import gguf
import jax
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from spinejax.target import RopeScaling, load_target
from spinejax.target.gguf_file import read_gguf
from spinejax.target.hf_dir import SafetensorsDir, read_hf
from spinejax.target.loading import packaged_path

LLAMA3 = RopeScaling(8.0, 1.0, 4.0, 8192)
TYPES = gguf.GGMLQuantizationType


def permuted(x, heads):
  rows = x.reshape(heads, 2, len(x) // heads // 2, *x.shape[1:])
  return rows.swapaxes(1, 2).reshape(x.shape)


def rope_factors(cfg, scaling):
  """Llama-3's factors of the rotary wavelengths, one a frequency."""
  factors = []
  for i in range(0, cfg.head_dim, 2):
    turns = scaling.original_max_position
    turns *= cfg.rope_base ** (-i / cfg.head_dim) / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = min(max((turns - low) / (high - low), 0), 1)
    factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
  return np.array(factors, np.float32)


def tensor_type(x, kind):
  """The type that one tensor gets in a file quantised to `kind`."""
  if x.ndim == 1 or (kind == TYPES.Q8_0 and x.shape[-1] % 32):
    return TYPES.F32
  return kind


def write_vocabulary(writer, folder, size):
  if (folder / 'tokenizer.json').is_file():
    inner = json.loads((folder / 'tokenizer.json').read_text())
    tokens = sorted(inner['model']['vocab'], key=inner['model']['vocab'].get)
    added = [t['content'] for t in inner['added_tokens']]
    merges, pre = inner['model']['merges'], 'qwen2'
  else:
    tokens, added, merges, pre = ['a', 'b', 'ab'], [], [['a', 'b']], 'llama-bpe'
  padding = size - len(tokens) - len(added)
  types = [1] * len(tokens) + [3] * len(added) + [5] * padding
  names = [f'[PAD{i}]' for i in range(size - padding, size)]
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens + added + names)
  writer.add_token_types(types)
  writer.add_token_merges([' '.join(m) for m in merges])


def write_gguf(folder, kind=TYPES.F32, change=None, arch=None, fields=True):
  """Writes a checkpoint as GGUF next to it; `change` edits its tensors."""
  cfg, _ = read_hf(folder)
  path = folder.with_suffix('.gguf')
  writer = gguf.GGUFWriter(path, arch or cfg.family)
  if fields:
    writer.add_block_count(cfg.layers)
    writer.add_context_length(cfg.max_position)
    writer.add_embedding_length(cfg.width)
    writer.add_feed_forward_length(cfg.ffn)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_key_length(cfg.head_dim)
    writer.add_layer_norm_rms_eps(cfg.norm_eps)
    writer.add_rope_freq_base(cfg.rope_base)
    write_vocabulary(writer, folder, cfg.vocab)
  model = gguf.MODEL_ARCH[cfg.family.upper()]
  names = gguf.get_tensor_name_map(model, cfg.layers)
  checkpoint = SafetensorsDir(folder)
  tensors = {}
  for name in checkpoint.where:
    x = checkpoint(name)
    if cfg.family == 'llama' and 'q_proj' in name:
      x = permuted(x, cfg.heads)
    if cfg.family == 'llama' and 'k_proj' in name:
      x = permuted(x, cfg.kv_heads)
    tensors[names.get_name(name, ('.weight', '.bias'))] = x
  if cfg.rope_scaling:
    tensors['rope_freqs.weight'] = rope_factors(cfg, cfg.rope_scaling)
  if change:
    change(tensors)
  for name, x in tensors.items():
    how = tensor_type(x, kind)
    data = x if x.dtype.kind == 'i' else quantize(x, how)
    raw = None if how == TYPES.F32 else how
    writer.add_tensor(name, data, raw_dtype=raw)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def scale_like_llama3(folder):
  """Gives a checkpoint the only rotary scaling that GGUF files have."""
  file = folder / 'config.json'
  config = json.loads(file.read_text())
  rope = config['rope_parameters']
  rope['original_max_position_embeddings'] = LLAMA3.original_max_position
  file.write_text(json.dumps(config))


@pytest.mark.parametrize('kind', [TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q8_0])
@pytest.mark.parametrize('name', ['llama', 'qwen2', 'qwen3'])
def test_gguf_reads_as_the_directory_it_was_made_from(copy, name, kind):
  folder = copy(name)
  if name == 'llama':
    scale_like_llama3(folder)
  cfg, params = read_hf(folder)
  assert cfg.rope_scaling == (LLAMA3 if name == 'llama' else None)
  gguf_cfg, gguf_params, _ = read_gguf(write_gguf(folder, kind))
  assert gguf_cfg == cfg

  def rounded(x):
    # Fused weights keep their rows, and types quantise row by row.
    how = tensor_type(x, kind)
    if how == TYPES.F32 or x.shape == params.layers[0].qkv_GJCD.shape[:-1]:
      return x
    rows = x.reshape(-1, x.shape[-1])
    return dequantize(quantize(rows, how), how).reshape(x.shape)

  chex.assert_trees_all_equal(gguf_params, jax.tree.map(rounded, params))
  assert (gguf_params.head_VD is gguf_params.embed_VD) == cfg.tied


def test_a_gguf_target_is_the_target_of_its_directory(copy):
  folder = copy('qwen3')
  one, other = load_target(str(folder)), load_target(str(write_gguf(folder)))
  assert (one.name, other.name, one.cfg) == ('qwen3', 'qwen3', other.cfg)
  assert one.head_hash == other.head_hash
  chex.assert_trees_all_equal(one.params, other.params)
  text = "def it's(x):\n  return 12.5 <|im_end|> cafe\u0301"
  assert one.tokenizer.encode(text) == other.tokenizer.encode(text)


def test_truncated_gguf(refused, copy):
  # Cut in the header, the metadata, the list of tensors and the tensors.
  path = write_gguf(copy('qwen3'))
  whole = path.read_bytes()
  cuts = [0, 1, 4, 7, 15, 23, *range(24, len(whole), 1999), len(whole) - 33]
  for cut in cuts:
    path.write_bytes(whole[:cut])
    with refused(f'{path}: not a complete GGUF file (...)'):
      load_target(str(path))


def test_file_that_is_not_gguf(refused, tmp_path):
  path = tmp_path / 'some.gguf'
  path.write_text('version https://git-lfs.github.com/spec/v1\n')
  why = 'ValueError: GGUF magic invalid'
  with refused(f'{path}: not a complete GGUF file ({why})'):
    load_target(str(path))


def test_truncated_download_of_a_real_gguf(refused, tmp_path):
  path = tmp_path / 'cut.gguf'
  with packaged_path('smollm2-135m').open('rb') as whole:
    path.write_bytes(whole.read(1_000_000))
  with refused(f'{path}: not a complete GGUF file (...)'):
    load_target(str(path))


def test_unknown_architecture(refused, copy):
  path = write_gguf(copy('qwen3'), arch='gemma3')
  message = "architecture 'gemma3' is not supported; expected one of "
  with refused(f'qwen3.gguf: {message}llama, qwen2, qwen3'):
    load_target(str(path))


def test_missing_metadata(refused, copy):
  path = write_gguf(copy('qwen3'), fields=False)
  with refused('qwen3.gguf: metadata tokenizer.ggml.tokens is missing'):
    load_target(str(path))


Q_NAME, NORM = 'blk.2.attn_q.weight', 'blk.0.attn_q_norm.weight'
BIAS = 'blk.1.ffn_up.bias'
NOT_AS_EXPECTED = {
  'missing': (Q_NAME, lambda t: t.pop(Q_NAME), 'is missing'),
  'norm': (NORM, lambda t: t.pop(NORM), 'is missing'),
  'shape': (
    Q_NAME,
    lambda t: t.update({Q_NAME: t[Q_NAME][:-1]}),
    'has shape (63, 32), expected (64, 32)',
  ),
  'type': (
    Q_NAME,
    lambda t: t.update({Q_NAME: t[Q_NAME].astype(np.int32)}),
    'has type I32, which cannot be dequantised',
  ),
  'unread': (
    BIAS,
    lambda t: t.update({BIAS: np.ones(48, np.float32)}),
    'is not part of a qwen3 model of 3 layers',
  ),
}


@pytest.mark.parametrize('case', NOT_AS_EXPECTED)
def test_tensor_that_is_not_as_expected(refused, copy, case):
  name, change, message = NOT_AS_EXPECTED[case]
  path = write_gguf(copy('qwen3'), change=change)
  with refused(f'qwen3.gguf: tensor {name!r} {message}'):
    load_target(str(path))


def test_query_rows_of_a_wrong_shape(refused, copy):
  # Llama's are put back in order, which must not fail first.
  folder = copy('llama')
  scale_like_llama3(folder)
  name = 'blk.0.attn_q.weight'
  path = write_gguf(folder, change=lambda t: t.update({name: t[name][:-1]}))
  message = f'tensor {name!r} has shape (31, 32), expected (32, 32)'
  with refused(f'llama.gguf: {message}'):
    read_gguf(path)


def test_rotary_factors_of_another_kind(refused, copy):
  path = write_gguf(copy('llama'))  # its scaling starts at 16 positions
  message = 'rope_freqs.weight is not a Llama-3 scaling (factor 8 or 32)'
  with refused(f'llama.gguf: {message}'):
    read_gguf(path)
