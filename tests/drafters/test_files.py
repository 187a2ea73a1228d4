"""What is on disk, before, during and after writing a drafter."""

import json
import os
import stat

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters import (
  DraftModel,
  check_destination,
  load_drafter,
  read_bundle,
  read_checkpoint,
  write_checkpoint,
)
from spinejax.drafters.layout import is_finite
from spinejax.errors import InputError


def test_weights_of_another_write_are_refused(
  trained, spine, tmp_path, refused, monkeypatch
):
  trained.write(tmp_path)
  replace = os.replace

  def stop_between(a, b):
    if b.name == 'config.json':
      raise OSError(5, 'stopped')
    replace(a, b)

  monkeypatch.setattr(os, 'replace', stop_between)
  with refused(f'{tmp_path}: stopped'):
    trained.write(tmp_path, eight_bit=True)
  with refused(
    f'{tmp_path}: model.safetensors is not the file that config.json was '
    'written with (an interrupted write?); write it again'
  ):
    read_bundle(tmp_path, spine.target)
  monkeypatch.undo()
  trained.write(tmp_path, eight_bit=True)
  read_bundle(tmp_path, spine.target)


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_weights_that_are_not_finite_are_neither_written_nor_read(
  flash, trained, tmp_path, refused, value
):
  params = jax.tree.map(np.array, flash.params)
  params.fc_DP[3, 4] = value
  model = DraftModel(flash.model.drafter, params)
  with refused(
    "drafter dflash: tensor 'fc.weight' has values that are not finite"
  ):
    write_checkpoint(tmp_path / 'new', model)
  assert not (tmp_path / 'new').exists()
  assert is_finite(np.full(9, 3e38, np.float32))  # though their sum is not


def test_what_is_read_is_finite(flash, tmp_path, refused):
  write_checkpoint(tmp_path, flash.model)
  tensors = load_file(tmp_path / 'model.safetensors')
  tensors['norm.weight'][5] = np.inf
  save_file(tensors, tmp_path / 'model.safetensors')
  with refused("...: tensor 'norm.weight' has values that are not finite"):
    read_checkpoint(tmp_path)


@pytest.mark.parametrize('name', ['config.json', 'model.safetensors'])
def test_a_destination_that_cannot_take_both_files(
  flash, tmp_path, refused, name
):
  (tmp_path / name).mkdir()
  for write in (check_destination, lambda p: write_checkpoint(p, flash.model)):
    with refused(
      f'{tmp_path}/{name}: is a directory, expected a file; choose another path'
    ):
      write(tmp_path)
  assert [f.name for f in tmp_path.iterdir()] == [name]


def test_destinations_are_checked_without_a_trace(tmp_path, refused):
  check_destination(tmp_path)
  check_destination(tmp_path / 'deep' / 'new')
  (tmp_path / 'file').touch()
  with refused(f'{tmp_path}/file: not a directory; choose another path'):
    check_destination(tmp_path / 'file' / 'new')
  for path in ('', None):
    with refused(f'path = {path!r}, expected a directory'):
      check_destination(path)
  assert [f.name for f in tmp_path.iterdir()] == ['file']
  (tmp_path / 'model.safetensors.index.json').touch()
  with refused(f'{tmp_path}: holds a sharded checkpoint; choose another path'):
    check_destination(tmp_path)


def test_modes_follow_the_umask_and_leftovers_go(flash, tmp_path):
  left = tmp_path / '.writing-killed'
  left.mkdir()
  (left / 'model.safetensors').touch()
  old = os.umask(0o027)
  try:
    write_checkpoint(tmp_path, flash.model)
  finally:
    os.umask(old)
  modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in tmp_path.iterdir()}
  assert modes == {'config.json': 0o640, 'model.safetensors': 0o640}


@pytest.mark.parametrize('value', ['x', None, [], [[1]], {}, -1, 1e999])
def test_any_value_in_any_field_is_one_line_that_names_the_file(
  spine, tmp_path, value
):
  write_checkpoint(tmp_path, spine.model)
  file = tmp_path / 'config.json'
  hf = json.loads(file.read_text())
  places = [(hf, k) for k in hf]
  places += [(hf[s], k) for s in hf if isinstance(hf[s], dict) for k in hf[s]]
  failed = set()
  for inside, key in places:
    old, inside[key] = inside[key], value
    file.write_text(json.dumps(hf))
    inside[key] = old
    try:
      load_drafter(tmp_path, spine.target)
    except InputError as error:
      failed.add(key)
      assert '\n' not in str(error)
      assert 'drafter dspine' in str(error) or tmp_path.name in str(error)
  if value is not None:
    assert failed >= {'hidden_size', 'rope_theta', 'rms_norm_eps', 'top_k'}


@pytest.mark.parametrize(
  'text, message',
  [
    ('[' * 100000, '...config.json: ...'),
    ('{"a":' * 100000, '...config.json: ...'),
    ('1' * 9999, '...config.json: ...'),
    ('[]', '...config.json: expected a JSON object'),
    (None, '...config.json: ...irectory...'),
  ],
)
def test_config_that_is_no_config(spine, tmp_path, refused, text, message):
  file = tmp_path / 'config.json'
  if text is None:
    file.mkdir()
  else:
    file.write_text(text)
  with refused(message):
    load_drafter(tmp_path, spine.target)


@pytest.mark.parametrize('field', ['rope_theta', 'rms_norm_eps'])
def test_a_number_beyond_floats_is_refused(flash, tmp_path, refused, field):
  write_checkpoint(tmp_path, flash.model)
  file = tmp_path / 'config.json'
  hf = json.loads(file.read_text()) | {field: 10**400}
  file.write_text(json.dumps(hf))
  with refused(f'{tmp_path.name}/config.json: ...'):
    load_drafter(tmp_path, flash.target)
