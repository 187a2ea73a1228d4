"""Published checkpoints: what is read, what is written, what is refused."""

import dataclasses
import json
import os
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters import read_checkpoint, write_checkpoint
from spinejax.drafters.base import DraftModel
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.target.config import RopeScaling
from tests.drafters.runs import GOLDEN, load_run, make_target

NAMES = (
  'dflash-b6',
  'dflash-sliding',
  'dflash2-b6',
  'dspine-b6',
  'dspine-separate-codes',
)


@pytest.fixture
def copied(tmp_path):
  """Copies a golden checkpoint, with changes to config and tensors."""

  def copy(name, config=(), tensors=(), drop=()):
    path = tmp_path / name
    path.mkdir()
    hf = json.loads((GOLDEN / name / 'config.json').read_text())
    for key, value in dict(config).items():
      *outer, last = key.split('.')
      inside = hf
      for part in outer:
        inside = inside.setdefault(part, {})
      if value is None:
        inside.pop(last, None)
      else:
        inside[last] = value
    weights = load_file(GOLDEN / name / 'model.safetensors') | dict(tensors)
    weights = {k: v for k, v in weights.items() if k not in drop}
    (path / 'config.json').write_text(json.dumps(hf))
    save_file(weights, path / 'model.safetensors')
    codes = GOLDEN / name / 'transfer.safetensors'
    if codes.exists():
      shutil.copy(codes, path)
    return path

  return copy


def assert_same(params, expected):
  assert jax.tree.structure(params) == jax.tree.structure(expected)
  for x, y in zip(
    jax.tree.leaves(params), jax.tree.leaves(expected), strict=True
  ):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


def test_configs_are_read_from_every_published_place(copied):
  cfg = read_checkpoint(GOLDEN / 'dflash-b6').drafter.cfg
  assert (cfg.block, cfg.mask_id, cfg.taps) == (6, 96, (1, 5, 9))
  assert (cfg.rope_base, cfg.norm_eps, cfg.causal) == (1e6, 1e-6, None)
  cfg = read_checkpoint(GOLDEN / 'dspine-separate-codes').drafter.cfg
  assert (cfg.rank, cfg.message, cfg.candidates) == (16, 10, 16)
  assert (cfg.taps, cfg.causal, cfg.norm_eps) == ((2, 7), True, 1e-3)
  path = copied(
    'dflash-sliding',
    {
      'dflash_config.block_size': 4,  # wins over the top level's 6
      'dflash_config.mask_token_id': None,
      'mask_token_id': 90,
      'dflash_config.final_logit_softcapping': 30,
      'output_multiplier': 0.5,
      'dflash_config.input_embedding_scale': 5.5,
      'rope_theta': None,
      'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'},
      'is_causal': False,
    },
  )
  cfg = read_checkpoint(path).drafter.cfg
  assert (cfg.block, cfg.mask_id, cfg.softcap) == (4, 90, 30.0)
  assert (cfg.output_multiplier, cfg.embedding_scale) == (0.5, 5.5)
  assert (cfg.rope_base, cfg.causal) == (5e5, False)
  assert cfg.windows == (None, 5, 5)


def test_release_without_dspine_config_is_block_16_and_full(copied):
  path = copied(
    'dspine-separate-codes',
    {
      'config.block_size': 8,
      'config.dflash_config.block_size': 8,
      'config.layer_types': ['sliding_attention'] * 2,
      'config.sliding_window': 4,
    },
  )
  cfg = read_checkpoint(path).drafter.cfg
  assert (cfg.block, cfg.windows) == (16, None)


def test_taps_that_are_not_stated_are_the_published_default(copied):
  unstated = {'dflash_config.target_layer_ids': None, 'num_target_layers': 16}
  path = copied('dflash-b6', unstated)
  assert read_checkpoint(path).drafter.cfg.taps == (1, 7, 13)
  path = copied('dflash-sliding', unstated | {'num_target_layers': None})
  target = load_run('dflash-sliding').target
  assert read_checkpoint(path, target).drafter.cfg.taps == (1, 5, 9)
  with pytest.raises(InputError, match="'num_target_layers' is missing"):
    read_checkpoint(path)


@pytest.mark.parametrize('name', NAMES)
def test_written_checkpoint_is_the_one_that_was_read(name, tmp_path):
  model = read_checkpoint(GOLDEN / name)
  write_checkpoint(tmp_path / 'new', model)
  again = read_checkpoint(tmp_path / 'new')
  assert again.drafter == model.drafter
  assert_same(again.params, model.params)
  published = load_file(GOLDEN / name / 'model.safetensors')
  if name == 'dspine-separate-codes':
    codes = load_file(GOLDEN / name / 'transfer.safetensors')['codes']
    published |= {'transfer_codes': codes, 'transfer_ready': np.array(True)}
  written = load_file(tmp_path / 'new' / 'model.safetensors')
  assert written.keys() == published.keys()
  for key, x in published.items():
    assert written[key].dtype == x.dtype
    assert written[key].shape == x.shape
    np.testing.assert_array_equal(written[key], x)
  hf = json.loads((tmp_path / 'new' / 'config.json').read_text())
  published = json.loads((GOLDEN / name / 'config.json').read_text())
  published = published.get('config', published)
  for key in hf.keys() - {'dflash_config', 'dspine_config'}:
    assert hf[key] == published[key]
  assert hf['dflash_config'].items() <= published['dflash_config'].items()
  assert (
    hf.get('dspine_config', {}).items()
    <= published.get('dspine_config', hf.get('dspine_config', {})).items()
  )


def test_unusual_settings_and_bfloat16_survive_a_round_trip(spine, tmp_path):
  cfg = dataclasses.replace(
    spine.cfg,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    windows=(None, 7, None),
    embedding_scale=3.0,
    output_multiplier=0.25,
    softcap=30.0,
  )
  params = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), spine.params)
  drafter = dataclasses.replace(spine.model.drafter, cfg=cfg)
  model = DraftModel(drafter, params)
  write_checkpoint(tmp_path, model, spine.target)
  again = read_checkpoint(tmp_path, spine.target)
  assert again.drafter == model.drafter
  assert_same(again.params, jax.device_get(params))
  hf = json.loads((tmp_path / 'config.json').read_text())
  assert (hf['dtype'], hf['num_target_layers']) == ('bfloat16', 12)
  assert hf['max_position_embeddings'] == 512


def test_failed_write_leaves_the_old_checkpoint(spine, tmp_path, monkeypatch):
  write_checkpoint(tmp_path, spine.model)
  (tmp_path / 'notes.txt').write_text('kept')
  before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
  other = jax.tree.map(lambda x: x + 1, spine.params)
  other = dataclasses.replace(spine.model, params=other)

  def fail(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'replace', fail)
  with pytest.raises(InputError, match='No space left on device'):
    write_checkpoint(tmp_path, other)
  assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
  monkeypatch.undo()
  write_checkpoint(tmp_path, other)
  assert_same(read_checkpoint(tmp_path).params, jax.device_get(other.params))
  assert {f.name for f in tmp_path.iterdir()} == before.keys()


def test_weights_take_their_place_before_the_config(
  spine, tmp_path, monkeypatch
):
  order, replace = [], os.replace
  monkeypatch.setattr(
    os, 'replace', lambda a, b: (order.append(b.name), replace(a, b))
  )
  write_checkpoint(tmp_path / 'deep' / 'new', spine.model)
  assert order == ['model.safetensors', 'config.json']


def test_what_the_published_layout_cannot_say_is_not_written(flash, tmp_path):
  def changed(**change):
    cfg = dataclasses.replace(flash.cfg, **change)
    return DraftModel(
      dataclasses.replace(flash.model.drafter, cfg=cfg), flash.params
    )

  mask = dataclasses.replace(flash.params, mask_D=flash.params.norm_D)
  cases = [
    (changed(windows=(None, 4, 5)), 'one width for all sliding'),
    (changed(qk_norm=False), 'q and k norms'),
    (DraftModel(flash.model.drafter, mask), 'learned mask embedding'),
    (plain_model(), "drafter 'plain' has no weights"),
  ]
  for model, message in cases:
    with pytest.raises(InputError, match=message):
      write_checkpoint(tmp_path / 'new', model)
  assert not (tmp_path / 'new').exists()
  (tmp_path / 'file').touch()
  with pytest.raises(InputError, match='file: not a directory; choose'):
    write_checkpoint(tmp_path / 'file', flash.model)


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
