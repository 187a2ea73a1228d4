"""The data file of one array: a round trip, and what is refused."""

import numpy as np
import pytest

from spinejax.train import npz
from spinejax.train.shards import Sequences


def sequences(*rows, answer=2) -> Sequences:
  tokens_NT = np.zeros((len(rows), 6), np.int32)
  for row, tokens in zip(tokens_NT, rows, strict=True):
    row[: len(tokens)] = tokens
  return Sequences(
    tokens_NT,
    np.full(len(rows), answer, np.int32),
    np.array([len(row) for row in rows], np.int32),
  )


@pytest.mark.parametrize('largest, stored', ((65535, 'u2'), (65536, 'u4')))
def test_round_trip(tmp_path, largest, stored):
  data = sequences([3, 0, largest, 7, 1], [1, 2])
  path = tmp_path / 'new' / 'sequences.npz'
  npz.save(data, path, {})
  read = npz.load(path)
  for field in ('tokens_NT', 'answer_N', 'length_N'):
    np.testing.assert_array_equal(getattr(read, field), getattr(data, field))
  assert read.tokens_NT.dtype == np.int32
  with np.load(path) as file:
    assert file['tokens'].dtype == np.dtype(stored)
  left = sorted(p.name for p in path.parent.iterdir())
  assert left == ['manifest.json', path.name]


def damage(path, how):
  good = sequences([1, 2, 3], [4, 5])
  arrays = dict(tokens=good.tokens_NT, answer=good.answer_N)
  if how == 'text':
    path.write_text('{"tokens": []}\nsecond line\n')
  elif how == 'empty':
    path.write_bytes(b'')
  elif how == 'truncated':
    npz.save(good, path, {})
    path.write_bytes(path.read_bytes()[:-60])
  elif how == 'npy':
    with open(path, 'wb') as file:
      np.save(file, good.tokens_NT)
  elif how == 'field missing':
    np.savez(path, **arrays)
  elif how == 'lengths of others':
    np.savez(path, **arrays, length=np.array([3, 2, 2]))
  elif how == 'length beyond the end':
    np.savez(path, **arrays, length=np.array([3, 7]))
  elif how == 'no sequences':
    np.savez(path, tokens=np.zeros((0, 6)), answer=[], length=[])
  elif how == 'folder':
    path.mkdir()


@pytest.mark.parametrize(
  'how',
  (
    'text', 'empty', 'truncated', 'npy', 'field missing', 'lengths of others',
    'length beyond the end', 'no sequences', 'folder',
  ),
)  # fmt: skip
def test_damaged_files(tmp_path, how, refused):
  path = tmp_path / 'sequences.npz'
  damage(path, how)
  with refused(f'{path}: not a data file (...)'):
    npz.load(path)


def test_missing_file(tmp_path, refused):
  path = tmp_path / 'sequences.npz'
  with refused(f'{path}: no such file; write it first'):
    npz.load(path)


def test_manifest(tmp_path, refused):
  path = tmp_path / 'sequences.npz'
  manifest = tmp_path / 'manifest.json'
  with refused(f'{manifest}: no such file'):
    npz.load_manifest(path)
  manifest.write_text('{"target": ')
  with refused(f'{manifest}: not valid JSON (...)'):
    npz.load_manifest(path)
  manifest.write_text('{"target": "tiny"}')
  with refused(f"{manifest}: 'head_hash' is missing"):
    npz.load_manifest(path)
  data = sequences([5, 5, 5], [1, 2, 3, 4])
  told = {'target': 'tiny', 'head_hash': 'ab', 'config': {'out': '/a/b'}}
  npz.save(data, path, told)
  found = npz.load_manifest(path)
  assert found['config'] == {'out': 'path/to/b'}
  assert found['target'] == 'tiny' and len(found['sha256']) == 64
  # What a kill between the two writes leaves: other data, the old manifest.
  path.write_bytes(b'other')
  with refused(
    f'{manifest} does not describe sequences.npz (an interrupted write?); '
    'write the data again'
  ):
    npz.load_manifest(path)
