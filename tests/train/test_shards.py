"""Data sets on disk: round trip, resuming, and what is refused."""

import json
import os
import shutil
import types

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from spinejax.train import shards
from spinejax.train.shards import Writer, Written, decode, open_data


def target(vocab=300, head_hash='ab12', name='tiny'):
  cfg = types.SimpleNamespace(vocab=vocab)
  return types.SimpleNamespace(name=name, head_hash=head_hash, cfg=cfg)


def sequence(*tokens, answer=1, kind='chat'):
  return Written(kind, np.array(tokens, np.int32), answer)


# The second shard repeats a sequence of its own and one of the first.
SHARDS = (
  [sequence(5, 6, 7), sequence(1, 2, answer=2, kind='code')],
  [sequence(9, 8), sequence(5, 6, 7, answer=2), sequence(9, 8)],
  [sequence(299, 0, 4, 4, answer=3)],
)
CONFIG = {'seed': 3, 'openings': {'chat': 1}, 'out': '/a/b'}


def write(folder, count=3, of=None, config=CONFIG):
  writer = Writer(folder, of or target(), shards=len(SHARDS), config=config)
  for number in range(writer.next, count):
    writer.add(SHARDS[number])
  return writer


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(data):
  return [
    decode(record, data.dtype)
    for path in data.paths
    for record in ArrayRecordReader(path).read_all()
  ]


@pytest.fixture
def folder(tmp_path):
  write(tmp_path / 'data')
  return tmp_path / 'data'


def test_round_trip(folder):
  data = open_data(folder, target=target(), longest=4)
  assert [(t.tolist(), a) for t, a in records(data)] == [
    ([5, 6, 7], 1), ([1, 2], 2), ([9, 8], 1), ([299, 0, 4, 4], 3),
  ]  # fmt: skip
  assert data.length_N.tolist() == [3, 2, 2, 4] and len(data) == 4


@pytest.mark.parametrize('vocab, dtype', ((65536, '<u2'), (65537, '<u4')))
def test_ids_take_as_few_bytes_as_they_may(tmp_path, vocab, dtype):
  Writer(tmp_path, target(vocab), shards=1, config={}).add(
    [sequence(vocab - 1, 4)]
  )
  data = open_data(tmp_path)
  assert data.dtype == np.dtype(dtype)
  assert records(data)[0][0].tolist() == [vocab - 1, 4]


def test_manifest(folder):
  manifest = json.loads((folder / 'manifest.json').read_text())
  listed = manifest.pop('shards')
  assert manifest == {
    'target': 'tiny', 'head_hash': 'ab12', 'vocab': 300, 'dtype': '<u2',
    'config': CONFIG | {'out': 'path/to/b'}, 'finished': True,
    'sequences': 4, 'tokens': 11, 'answer_tokens': 4, 'repetitions': 2,
    'kinds': {
      'chat': {'sequences': 3, 'tokens': 9, 'answer_tokens': 4},
      'code': {'sequences': 1, 'tokens': 2, 'answer_tokens': 0},
    },
  }  # fmt: skip
  assert [x['records'] for x in listed] == [2, 1, 1]
  assert [x['repetitions'] for x in listed] == [0, 2, 0]
  assert list(listed[0]['kinds']) == ['chat', 'code']


def test_same_sequences_same_bytes(folder, tmp_path):
  write(tmp_path / 'again')
  assert contents(tmp_path / 'again') == contents(folder)


@pytest.mark.parametrize('count', (1, 2))
def test_a_killed_writer_is_gone_on_with(folder, tmp_path, count):
  """Repetitions of what was written before are still known."""
  other = tmp_path / 'other'
  assert not write(other, count).manifest['finished']
  assert open_data(other).manifest['finished'] is False
  assert write(other, 0).next == count
  assert write(other).manifest['finished']
  assert contents(other) == contents(folder)


def test_killed_between_shard_and_manifest(folder, tmp_path):
  other = tmp_path / 'other'
  write(other, 1)
  # One that nothing lists, and the half of another.
  (other / 'shard-00001.arrayrecord').write_bytes(b'of another run')
  (other / '.shard-00002.arrayrecord.tmp').write_bytes(b'half')
  mine = other / '.mine.tmp'
  mine.write_bytes(b'of somebody else')
  write(other)
  mine.unlink()  # it is there still
  assert contents(other) == contents(folder)


def test_a_shard_gets_its_name_when_it_is_whole(tmp_path, monkeypatch):
  names = []

  def replace(source, destination):
    names.append(os.path.basename(destination))
    if names[-1].startswith('shard') and len(names) > 2:
      raise KeyboardInterrupt
    os.rename(source, destination)

  monkeypatch.setattr(shards.os, 'replace', replace)
  with pytest.raises(KeyboardInterrupt):
    write(tmp_path)
  assert names == [
    'shard-00000.arrayrecord', 'manifest.json', 'shard-00001.arrayrecord',
  ]  # fmt: skip
  assert not (tmp_path / 'shard-00001.arrayrecord').exists()
  assert len(open_data(tmp_path)) == 2


def test_finished_data_is_left_alone(folder):
  before = contents(folder)
  assert write(folder).next == len(SHARDS)
  assert contents(folder) == before


@pytest.mark.parametrize(
  'changes, message',
  (
    (
      dict(of=target(head_hash='cd')),
      "head_hash = 'ab12' lies there, not 'cd'",
    ),
    (
      dict(config=CONFIG | {'seed': 4}),
      'config.seed = 3 lies there, not 4',
    ),
    (
      dict(config=CONFIG | {'openings': {'chat': 2}}),
      'config.openings.chat = 1 lies there, not 2',
    ),
    (
      dict(config=CONFIG | {'more': 1}),
      'config.more = None lies there, not 1',
    ),
  ),
)
def test_data_made_in_another_way(folder, refused, changes, message):
  before = contents(folder)
  with refused(
    f'{folder}/manifest.json: data with {message}; choose another folder'
  ):
    write(folder, **changes)
  assert contents(folder) == before


def test_a_damaged_shard_is_not_gone_on_with(tmp_path, refused):
  write(tmp_path, 2)
  path = tmp_path / 'shard-00000.arrayrecord'
  path.write_bytes(path.read_bytes()[:-1])
  with refused(f'{path}: damaged (its SHA-256 is ...)'):
    write(tmp_path)


def test_no_data(tmp_path, refused):
  with refused(f'{tmp_path}/none: no such folder; write the data first'):
    open_data(tmp_path / 'none')
  with refused(f'{tmp_path}: has no manifest.json; write the data first'):
    open_data(tmp_path)
  manifest = tmp_path / 'manifest.json'
  manifest.write_text('{"target": ')
  with refused(f'{manifest}: not valid JSON (...)'):
    open_data(tmp_path)
  manifest.write_text('{"shards": [{"file": "a"}]}')
  with refused(f"{manifest}: not understood (KeyError: 'records')"):
    open_data(tmp_path)


def test_empty_data(tmp_path, refused):
  Writer(tmp_path, target(), shards=1, config={}).add([])
  with refused(f'{tmp_path}: has no sequences'):
    open_data(tmp_path)


def test_missing_shard(folder, refused):
  path = folder / 'shard-00001.arrayrecord'
  path.unlink()
  with refused(f'{path}: no such file, though the manifest lists it'):
    open_data(folder)


def truncate(path):
  path.write_bytes(path.read_bytes()[:-100])


def empty(path):
  path.write_bytes(b'')


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def swap(path):
  shutil.copy(path.with_name('shard-00000.arrayrecord'), path)


@pytest.mark.parametrize('harm', (truncate, empty, flip, swap))
def test_damaged_shard(folder, refused, harm):
  path = folder / 'shard-00001.arrayrecord'
  harm(path)
  with refused(f'{path}: damaged (its SHA-256 is ..., the manifest says ...)'):
    open_data(folder)


def edit(folder, change):
  path = folder / 'manifest.json'
  manifest = json.loads(path.read_text())
  change(manifest)
  path.write_text(json.dumps(manifest))


def test_another_number_of_records(folder, refused):
  edit(folder, lambda m: m['shards'][2].update(records=2))
  path = folder / 'shard-00002.arrayrecord'
  with refused(f'{path}: has 1 sequences, the manifest says 2'):
    open_data(folder)


def test_another_target(folder, refused):
  with refused(f'{folder}: written by tiny, not by large'):
    open_data(folder, target=target(head_hash='cd', name='large'))


def test_ids_outside_the_vocabulary(folder, refused):
  path = folder / 'shard-00002.arrayrecord'
  with refused(f'{path}: sequence 0 has token id 299, expected 0..298'):
    open_data(folder, target=target(vocab=299))
  path = folder / 'shard-00000.arrayrecord'
  edit(folder, lambda m: m.update(vocab=7))
  with refused(f'{path}: sequence 0 has token id 7, expected 0..6'):
    open_data(folder)


def test_long_sequences(folder, refused):
  path = folder / 'shard-00002.arrayrecord'
  with refused(f'{path}: sequence 0 has 4 tokens, expected at most 3'):
    open_data(folder, longest=3)


def test_an_answer_behind_the_end(tmp_path, refused):
  writer = Writer(tmp_path, target(), shards=1, config={})
  writer.add([sequence(1, 2), sequence(3, 4, answer=3)])
  with refused(
    f'{tmp_path}/shard-00000.arrayrecord: the answer of sequence 1 starts at '
    '3, expected at most its 2 tokens'
  ):
    open_data(tmp_path)
