"""What no model has: each is refused in one line that names the file."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.target import (
  RopeScaling,
  load_target,
  preset,
  target_config,
)
from spinejax.target.assemble import checked_fetch
from spinejax.target.config import config_of_hf
from spinejax.target.hf_dir import read_hf
from spinejax.target.parse import understood
from spinejax.target.tokenizer import tokenizer_of_hf


@pytest.fixture
def folder(copy):
  return copy('qwen3')


def edit_json(file, **changes):
  value = json.loads(file.read_text()) if file.is_file() else {}
  file.write_text(json.dumps(value | changes))


def edit_tokenizer(folder, **changes):
  edit_json(folder / 'tokenizer.json', **changes)


# Shapes.


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'norm_eps': 0.0}, 'norm_eps = 0.0; expected a positive number'),
    ({'norm_eps': np.nan}, 'norm_eps = nan; expected a positive number'),
    ({'rope_base': np.inf}, 'rope_base = inf; expected a positive number'),
    ({'rope_base': -1.0}, 'rope_base = -1.0; expected a positive number'),
    ({'rope_base': None}, 'rope_base = None; expected a positive number'),
    ({'head_dim': 63}, 'head_dim = 63; expected an even number, ...'),
    ({'layers': 0}, 'layers = 0; expected a positive whole number'),
    ({'kv_heads': 0}, 'kv_heads = 0; expected a positive whole number'),
    ({'vocab': 8.0}, 'vocab = 8.0; expected a positive whole number'),
    ({'ffn': True}, 'ffn = True; expected a positive whole number'),
    ({'width': '8'}, "width = '8'; expected a positive whole number"),
  ],
)
def test_shapes_that_cannot_be(refused, changes, message):
  with refused(message):
    dataclasses.replace(preset('qwen3-0.6b'), **changes)


@pytest.mark.parametrize(
  'values, message',
  [
    ((0.5, 1.0, 4.0, 8192), 'factor = 0.5; expected at least 1'),
    (
      (8.0, 4.0, 4.0, 8192),
      'low_freq_factor = 4.0; expected less than high_freq_factor = 4.0',
    ),
    (
      (8.0, 1.0, np.inf, 8192),
      'high_freq_factor = inf; expected a positive number',
    ),
    (
      (8.0, 1.0, 4.0, 0),
      'original_max_position = 0; expected a positive whole number',
    ),
  ],
)
def test_rope_scaling_that_cannot_be(refused, values, message):
  with refused(f'rope scaling: {message}'):
    RopeScaling(*values)


# config.json and its like.

LLAMA3 = {
  'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1,
  'high_freq_factor': 4, 'original_max_position_embeddings': 8192,
}  # fmt: skip


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'rope_parameters': None, 'rope_theta': None},
      'rope_theta = None; expected a number',
    ),
    (
      {'rope_parameters': None, 'rope_scaling': 'x'},
      "rope_scaling = 'x'; expected an object",
    ),
    ({'rope_parameters': [1]}, 'rope_parameters = [1]; expected an object'),
    (
      {'rope_parameters': LLAMA3 | {'factor': 'x'}},
      "factor = 'x'; expected a number",
    ),
    (
      {'rope_parameters': LLAMA3 | {'factor': 0.5}},
      'rope scaling: factor = 0.5; expected at least 1',
    ),
    ({'rms_norm_eps': [1]}, 'rms_norm_eps = [1]; expected a number'),
    ({'rms_norm_eps': 10**400}, 'not understood (OverflowError: ...)'),
    (
      {'tie_word_embeddings': 'false'},
      "tie_word_embeddings = 'false'; expected true or false",
    ),
    (
      {'use_sliding_window': True, 'layer_types': 5},
      'not understood (TypeError: ...)',
    ),
    (
      {'num_key_value_heads': 3},
      'heads = 4 is not a multiple of kv_heads = 3',
    ),
    ({'head_dim': 7}, 'head_dim = 7; expected an even number, ...'),
  ],
)
def test_config_that_is_not_understood(folder, refused, changes, message):
  hf = json.loads((folder / 'config.json').read_text())
  with refused(f'config.json: {message}'):
    config_of_hf(hf | changes)


@pytest.mark.parametrize(
  'text',
  ['{"a":' * 200_000, '[' * 200_000, '{"vocab_size": ' + '9' * 5000 + '}'],
)
def test_json_that_python_cannot_read(folder, refused, text):
  file = folder / 'config.json'
  file.write_text(text)
  with refused(f'{file}: not valid JSON (...)'):
    target_config(str(folder))


@pytest.mark.parametrize(
  'name',
  [
    'config.json',
    'generation_config.json',
    'tokenizer_config.json',
    'model.safetensors.index.json',
  ],
)
def test_a_directory_in_place_of_a_file(folder, refused, name):
  file = folder / name
  file.unlink(missing_ok=True)
  file.mkdir()
  with refused(f'{file}: cannot be read (Is a directory)'):
    load_target(str(folder))


@pytest.mark.parametrize('value', [[], None, {'a': 1}, {}, 'x'])
def test_index_that_is_not_understood(folder, refused, value):
  index = folder / 'model.safetensors.index.json'
  edit_json(index, weight_map=value)
  with refused(
    f'{index}: weight_map = {value!r}; expected tensor names and the file of '
    'each'
  ):
    read_hf(folder)


@pytest.mark.parametrize('name', ['generation_config.json', 'config.json'])
@pytest.mark.parametrize('value', ['x', 9999, -1, {}, [1.5], [True], 2**40])
def test_stop_ids_that_are_none(folder, refused, name, value):
  if name == 'config.json':
    (folder / 'generation_config.json').unlink()
  edit_json(folder / name, eos_token_id=value)
  shown = value[0] if isinstance(value, list) else value
  with refused(
    f'{folder / name}: eos_token_id = {shown!r}; expected the id of a token'
  ):
    tokenizer_of_hf(folder)


@pytest.mark.parametrize('value', [5, [1], {'content': 5}])
def test_special_tokens_that_are_no_strings(folder, refused, value):
  file = folder / 'tokenizer_config.json'
  edit_json(file, bos_token=value)
  with refused(f'{file}: bos_token = {value!r}; expected a string'):
    tokenizer_of_hf(folder)


def test_the_guard_names_the_file_once_and_on_one_line(refused):
  with refused('x.gguf: not understood (KeyError: 5)'), understood('x.gguf'):
    raise KeyError(5)
  with (
    refused('x.gguf: not understood (Exception: a b)'),
    understood('x.gguf'),
  ):
    raise Exception('a\nb')


# Tokenizers and chat templates.


def test_the_settings_of_training_do_not_act(folder):
  text = 'a text of more than three tokens'
  ids = tokenizer_of_hf(folder).encode(text)
  edit_tokenizer(
    folder,
    truncation={
      'direction': 'Right', 'max_length': 3, 'strategy': 'LongestFirst',
      'stride': 0,
    },
    padding={
      'strategy': {'Fixed': 64}, 'direction': 'Left', 'pad_id': 0,
      'pad_to_multiple_of': None, 'pad_type_id': 0, 'pad_token': '!',
    },
  )  # fmt: skip
  assert tokenizer_of_hf(folder).encode(text) == ids


def test_an_id_beyond_the_embedding(folder, refused):
  inner = json.loads((folder / 'tokenizer.json').read_text())
  vocab = inner['model']['vocab']
  unused = next(t for t in reversed(vocab) if len(t) > 2)
  inner['model']['merges'] = [
    m for m in inner['model']['merges'] if ''.join(m) != unused
  ]
  vocab[unused] = 5000
  edit_tokenizer(folder, model=inner['model'])
  message = 'the tokenizer has 5001 tokens, the weights 320'
  with refused(f'qwen3: {message}; they do not belong together'):
    load_target(str(folder))


@pytest.mark.parametrize('value', [5, [1], {'a': 'b'}])
def test_template_that_is_no_string(folder, refused, value):
  file = folder / 'tokenizer_config.json'
  edit_json(file, chat_template=value)
  with refused(f'chat template: {value!r} in {file}; expected a string'):
    tokenizer_of_hf(folder)


def test_template_that_is_not_utf8(folder, refused):
  file = folder / 'chat_template.jinja'
  file.write_bytes(b'\xff')
  with refused(f'chat template: {file} is not UTF-8 (...)'):
    tokenizer_of_hf(folder)


@pytest.mark.parametrize(
  'template, message',
  [
    ("{{ 'a' + 1 }}", 'TypeError: can only concatenate str...'),
    ('{{ 1 / 0 }}', 'ZeroDivisionError: division by zero'),
    ("{{ raise_exception('a\\nb') }}", 'a b'),
  ],
)
def test_template_that_fails(folder, refused, template, message):
  edit_json(folder / 'tokenizer_config.json', chat_template=template)
  with refused(f'chat template: {message}'):
    tokenizer_of_hf(folder).render([{'role': 'user', 'content': 'hi'}])


def test_text_with_half_a_surrogate_pair(folder, refused):
  tokenizer = tokenizer_of_hf(folder)
  for encode in (tokenizer.encode, lambda text: tokenizer.encode_chat([text])):
    with refused("the text is not valid Unicode: '\\ud800' at character ..."):
      encode('a\ud800')


# Weights, names and dtypes.


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_weights_that_are_not_finite(folder, refused, value, dtype):
  file, name = folder / 'model.safetensors', 'model.layers.1.mlp.up_proj.weight'
  tensors = load_file(file)
  tensors[name] = tensors[name].astype(dtype)
  tensors[name][3, 5] = value
  save_file(tensors, file)
  with refused(f'qwen3: tensor {name!r} has values that are not finite'):
    read_hf(folder)


def test_finite_weights_may_overflow_their_sum():
  big = np.full(8, 3e38, ml_dtypes.bfloat16)
  fetch = checked_fetch({'x': big}.__getitem__, 'file')
  np.testing.assert_array_equal(fetch('x', (8,)), big)


@pytest.mark.parametrize('source', [None, 5, '', []])
def test_targets_that_are_no_names(refused, source):
  message = f'target = {source!r}; expected a name or a path'
  with refused(message):
    load_target(source)
  with refused(f'{message}; nor a preset: ...'):
    target_config(source)


@pytest.mark.parametrize(
  'dtype, name',
  [
    ('int32', 'int32'),
    (np.int32, 'int32'),
    ('float8', 'float8'),
    ('float64', 'float64'),
    (None, 'None'),
    ([], '[]'),
  ],
)
def test_dtypes_that_no_weights_take(refused, golden, dtype, name):
  with refused(f'dtype = {name}, expected one of float32, bfloat16, float16'):
    load_target(str(golden / 'qwen3'), dtype)
