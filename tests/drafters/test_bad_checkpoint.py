"""Published checkpoints that are refused."""

import dataclasses
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters import read_checkpoint
from spinejax.errors import InputError
from tests.drafters.runs import GOLDEN, make_target

NOT_BOOL, NOT_INT = {'is_causal': 'yes'}, {'hidden_size': '64'}
REFUSED = [
  # name, config, tensors, drop, message
  ('dflash-b6', {}, {}, ['fc.weight'], "tensor 'fc.weight' is missing"),
  (
    'dflash-b6',
    {},
    {'norm.weight': np.ones(63, np.float32)},
    [],
    r"tensor 'norm.weight' has shape \(63,\), expected \(64,\)",
  ),
  (
    'dflash-b6',
    {},
    {'norm.weight': np.ones(64, np.int32)},
    [],
    "tensor 'norm.weight' has dtype int32",
  ),
  (
    'dflash-b6',
    {},
    {'selector.weight': np.ones(2)},
    [],
    "tensor 'selector.weight' is not part of this method",
  ),
  (
    'dflash-b6',
    {'architectures': ['EagleDraftModel']},
    {},
    [],
    r"architectures \['EagleDraftModel'\] are not supported; expected one of "
    'DFlashDraftModel, DFlash2DraftModel, ',
  ),
  ('dflash-b6', {'architectures': None}, {}, [], r'architectures \[\] are not'),
  ('dflash-b6', {'hidden_size': None}, {}, [], "'hidden_size' is missing"),
  ('dflash-b6', NOT_INT, {}, [], "hidden_size = '64', expected an integer"),
  ('dflash-b6', NOT_BOOL, {}, [], "is_causal = 'yes', expected true or false"),
  ('dflash-b6', {'rms_norm_eps': '0'}, {}, [], 'rms_norm_eps = .* a number'),
  ('dflash-b6', {'block_size': 1}, {}, [], 'block_size = 1'),
  ('dflash-b6', {'hidden_act': 'gelu'}, {}, [], "hidden_act 'gelu'"),
  ('dflash-b6', {'attention_bias': True}, {}, [], 'attention_bias true'),
  ('dflash-b6', {'dflash_config.mask_token_id': 97}, {}, [], 'mask_id = 97'),
  (
    'dflash-b6',
    {'dflash_config.target_layer_ids': [5, 1, 9]},
    {},
    [],
    'expected ascending',
  ),
  (
    'dflash-b6',
    {'layer_types': ['full_attention', 'linear_attention', 'x']},
    {},
    [],
    'layer_types = ',
  ),
  (
    'dflash-b6',
    {'layer_types': ['sliding_attention'] * 3},
    {},
    [],
    "'sliding_window' is missing",
  ),
  ('dflash-b6', {'layer_types': 3}, {}, [], 'layer_types = 3, expected 3 of'),
  ('dflash-b6', {'dflash_config': []}, {}, [], 'dflash_config = .., expected'),
  (
    'dflash-b6',
    {'rope_scaling': {'rope_type': 'yarn'}},
    {},
    [],
    "rope scaling 'yarn' is not supported",
  ),
  (
    'dflash-b6',
    {'rope_scaling': {'rope_type': 'llama3'}},
    {},
    [],
    "rope parameters: KeyError\\('factor'\\)",
  ),
  (
    'dspine-b6',
    {},
    {},
    ['transfer_codes'],
    'token codes are missing: .* they cannot be rebuilt',
  ),
  (
    'dspine-b6',
    {},
    {'transfer_ready': np.array(False)},
    [],
    'transfer_ready is false',
  ),
  (
    'dspine-b6',
    {},
    {'transfer_codes': np.ones((97, 23), np.float32)},
    [],
    r"'transfer_codes' has shape \(97, 23\), expected \(97, 24\)",
  ),
  ('dspine-b6', {'is_causal': False}, {}, [], 'DSpine is causal'),
  (
    'dspine-b6',
    {'dspine_config.transfer_rank': 20},
    {},
    [],
    r'has shape \(24, 64\), expected \(20, 64\)',
  ),
  (
    'dflash2-b6',
    {'dflash_config.conv_kernel_size': 3},
    {},
    [],
    r"base_kernel' has shape \(2, 2, 64\), expected \(2, 3, 64\)",
  ),
  (
    'dflash2-b6',
    {'dflash_config.selector_rank': None},
    {},
    [],
    "field 'selector_rank' is missing",
  ),
  (
    'dflash2-b6',
    {},
    {},
    ['layers.1.mlp_conv.base_kernel'],
    "tensor 'layers.1.mlp_conv.base_kernel' is missing",
  ),
  (
    'domino-b6',
    {'dflash_config.shift_label': 1},
    {},
    [],
    'shift_label = 1, expected true or false',
  ),
  (
    'domino-b6',
    {'dflash_config.gru_hidden_dim': 8},
    {},
    [],
    r"'prefix_gru.weight_ih_l0' has shape \(48, 32\), expected \(24, 32\)",
  ),
  (
    'dspark-gated',
    {'markov_head_type': 'linear'},
    {},
    [],
    "markov_head = 'linear', expected one of vanilla, gated, rnn",
  ),
  (
    'dspark-gated',
    {'markov_head_type': 'vanilla'},
    {},
    [],
    r"'markov_head.gate_proj.\w+' is not part of this method",
  ),
  (
    'dspark-gated',
    {'confidence_head_with_markov': True},
    {},
    [],
    r"'confidence_head.proj.weight' has shape \(1, 32\), expected \(1, 40\)",
  ),
  (
    'dspark-vanilla',
    {'markov_rank': 0},
    {},
    [],
    "'confidence_head.proj.bias' is not part of this method",
  ),
  (
    'dspark-vanilla',
    {},
    {'lm_head.weight': np.ones((96, 32), np.float32)},
    [],
    r"'lm_head.weight' has shape \(96, 32\), expected \(97, 32\)",
  ),
  (
    'dspine-separate-codes',
    {},
    {},
    ['injection.message.weight'],
    "sizes come from tensor 'injection.message.weight', which is missing",
  ),
]


@pytest.mark.parametrize(
  'name, config, tensors, drop, message',
  REFUSED,
  ids=[f'{i}-{case[0]}' for i, case in enumerate(REFUSED)],
)
def test_refused_in_one_line(copied, name, config, tensors, drop, message):
  path = copied(name, config, tensors, drop)
  with pytest.raises(InputError, match=message) as caught:
    read_checkpoint(path)
  assert '\n' not in str(caught.value)
  assert name in str(caught.value)


def test_broken_files_are_named(copied, tmp_path):
  with pytest.raises(InputError, match='nowhere: no such directory'):
    read_checkpoint(tmp_path / 'nowhere')
  path = copied('dspine-separate-codes')
  codes = path / 'transfer.safetensors'
  codes.write_bytes(codes.read_bytes()[:-9])
  with pytest.raises(InputError, match='transfer.safetensors: truncated'):
    read_checkpoint(path)
  other = load_file(GOLDEN / path.name / 'transfer.safetensors')['codes'] + 1
  shutil.copy(GOLDEN / path.name / 'transfer.safetensors', path)
  save_file({'codes': other}, path / 'more.safetensors')
  with pytest.raises(InputError, match='several files hold different token'):
    read_checkpoint(path)
  weights = path / 'model.safetensors'
  weights.write_bytes(weights.read_bytes()[:-9])
  with pytest.raises(InputError, match='model.safetensors: truncated'):
    read_checkpoint(path)
  weights.unlink()
  with pytest.raises(InputError, match='model.safetensors: no such file'):
    read_checkpoint(path)
  (path / 'config.json').write_text('{')
  with pytest.raises(InputError, match='config.json: not valid JSON'):
    read_checkpoint(path)
  (path / 'config.json').unlink()
  with pytest.raises(InputError, match='config.json: no such file'):
    read_checkpoint(path)


@pytest.mark.parametrize(
  'V, D, message',
  [
    (98, 64, 'was made for a target of vocab 97; tiny has 98'),
    (97, 32, 'was made for a target of width 64; tiny has 32'),
  ],
)
def test_another_target_is_refused(V, D, message):
  table = np.zeros((V, D), np.float32)
  with pytest.raises(InputError, match=message):
    read_checkpoint(GOLDEN / 'dflash-b6', make_target(table, table))


def test_taps_beyond_the_target_are_refused(flash):
  shallow = dataclasses.replace(flash.target.cfg, layers=10)
  target = dataclasses.replace(flash.target, cfg=shallow)
  with pytest.raises(InputError, match=r'taps layers \(1, 5, 9\); tiny has'):
    read_checkpoint(flash.path, target)
