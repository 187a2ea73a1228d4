"""Bad input to the binaries: exit status 2, one line that names what is
wrong, and nothing written."""

import hashlib
import json
import pathlib

import numpy as np
import pytest

from spinejax.target.loading import load_target
from tests.experiments import binaries

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
TINY = GOLDEN / 'transformers' / 'qwen3'
# A target that cannot be loaded: what is refused with it is refused before.
NOWHERE = 'no/such/target.gguf'
CONFIGS = {
  'decode': 'configs/decode_smollm2.py:demo',
  'memory': 'configs/memory.py',
  'train_drafter': 'configs/train_smollm2_dspine.py',
  'write_data': 'configs/write_smollm2.py',
}
OUTPUT = {
  'decode': ('results', 'tensorboard'),
  'train_drafter': ('out',),
  'write_data': ('out',),
}


@pytest.fixture
def refused_by(tmp_path, monkeypatch):
  """`refused_by(binary, message, field=value, ...)`.

  What stands for `...` in the message may be any text. `{tmp}` is a folder.
  """

  def check(binary, message, target=NOWHERE, **fields):
    outputs = {x: tmp_path / 'written' / x for x in OUTPUT.get(binary, ())}
    fields = dict(target=target) | outputs | fields
    flags = [
      f'--config.{field}={str(value).replace("{tmp}", str(tmp_path))}'
      for field, value in fields.items()
    ]
    done = binaries.fork(binary, f'--config={CONFIGS[binary]}', *flags)
    assert_refused(done, message.replace('{tmp}', str(tmp_path)))
    written = (tmp_path / 'written').rglob('*')
    assert not [path for path in written if path.is_file()]

  return check


def assert_refused(done: binaries.Done, message: str):
  """One line on stderr, with the parts of the message in order."""
  assert done.status == 2, done.err
  assert done.err.startswith('error: ') and done.err.endswith('\n')
  line = done.err[len('error: ') : -1]
  assert '\n' not in line
  at = 0
  for part in message.split('...'):
    assert part in line[at:], line
    at = line.index(part, at) + len(part)
  assert line.startswith(message.split('...')[0]), line


@pytest.mark.parametrize(
  'flags, message',
  (
    ((), '--config is missing, expected a file of configs/'),
    (('--config=configs/nope.py',), '--config: ...No such file...nope.py'),
    (('--config=configs/memory.py:x',), 'flag --config=configs/memory.py:x:'),
    (
      ('--config=configs/decode_smollm2.py:dmeo',),
      "flag --config=...variant 'dmeo', expected full or demo",
    ),
    (
      ('--config=configs/decode_smollm2.py', '--config.limitt=3'),
      "the config has no field 'limitt'...limit",
    ),
    (
      ('--config=configs/memory.py', '--config.drafter.blok=3'),
      "the config has no field 'blok'...block",
    ),
    (
      ('--config=configs/memory.py', '--config.batch=two'),
      "flag --config.batch=two: ...'two'",
    ),
    (('--config=configs/memory.py', '--nope'), "Unknown ... flag 'nope'"),
    (('--config=configs/memory.py', 'x'), "unexpected argument 'x'"),
  ),
)  # fmt: skip
def test_flags(flags, message):
  assert_refused(binaries.fork('memory', *flags), message)


@pytest.mark.parametrize(
  'field, value, message',
  (
    ('prompts', 'humanevil', "prompts: 'humanevil' is not humaneval, ..."),
    ('prompts', '{tmp}/none.jsonl', '{tmp}/none.jsonl: no such file'),
    ('prompts', 'arithmetic,arithmetic', "prompts: two sets are called '...'"),
    ('limit', -1, 'limit: expected at least 1, got -1'),
    ('block', 1, 'block = 1, expected at least 2'),
    ('temperature', -1, 'temperature = -1.0, expected ...'),
    ('top_p', 1.5, 'top_p = 1.5, expected above 0 and at most 1'),
    ('batch', 0, 'batch = 0, expected at least 1'),
    ('max_new_tokens', 0, 'max_new_tokens = 0, expected at least 1'),
    ('seed', -1, 'seed = -1, expected 0...'),
    ('dtype', 'float33', "dtype = 'float33', expected float32 or bfloat16"),
    ('drafters', '()', 'drafters is empty, expected at least one'),
    ('drafters', "('ngram', 'ngram')", "drafters names 'ngram' twice"),
    ('drafters', "('plain',)", 'drafters: plain is always run, leave it out'),
    ('name', 'a/b', "name = 'a/b' is not a plain file name"),
    ('results', '{tmp}/file/x', '{tmp}/file/x/decode: Not a directory'),
    ('target', NOWHERE, '{target}: no such file'),
    ('target', 'smollm3', "target 'smollm3' is neither a directory, nor ..."),
  ),
)
def test_decode(field, value, message, refused_by, tmp_path):
  (tmp_path / 'file').touch()
  fields = {'prompts': 'arithmetic', field: value}
  refused_by('decode', message.replace('{target}', NOWHERE), **fields)


@pytest.mark.parametrize(
  'lines, message',
  (
    (['{"turns": ["a"]}', '', '{"turns": ["b"]'], ':3: not JSON: ...'),
    (['{"turns": ["a"]}', '{"turn": ["b"]}'], ":2: 'turns' is missing"),
    ([''], ': no prompts'),
  ),
)
def test_malformed_prompts(lines, message, refused_by, tmp_path):
  (tmp_path / 'mine.jsonl').write_text('\n'.join(lines) + '\n')
  for binary in ('decode', 'write_data'):
    refused_by(binary, '{tmp}/mine.jsonl' + message, prompts='{tmp}/mine.jsonl')


def test_no_rows_to_compare_with(refused_by):
  refused_by(
    'decode',
    'block = 0, expected at least 2 where same_rows is set',
    block=0,
    same_rows=True,
  )


def test_what_shows_only_with_the_target(refused_by, tmp_path):
  (tmp_path / 'mine.txt').write_text('Hi.\n\n' + 'Hello there. ' * 40)
  (tmp_path / 'short.txt').write_text('Hi.\n')
  tiny = dict(target=TINY, prompts='{tmp}/short.txt', max_new_tokens=4)
  refused_by(
    'decode',
    'prompt 1 has ... tokens; with 4 new ones that exceeds the context of 128 '
    'that qwen3 was trained for',
    **tiny | dict(prompts='{tmp}/short.txt,{tmp}/mine.txt', drafters='ngram'),
  )
  refused_by(
    'decode',
    'drafter dspine was made for a target of vocab 97; qwen3 has 320',
    **tiny | dict(drafters=GOLDEN / 'drafters' / 'dspine-b6'),
  )
  refused_by(
    'decode',
    'drafter dspine was made for a target of vocab 49152; qwen3 has 320',
    **tiny | dict(drafters='smollm2-135m-dspine'),
  )
  refused_by(
    'decode',
    "drafter 'dspnie' is neither a directory nor one of plain, ngram, ...",
    **tiny | dict(drafters='dspnie'),
  )


@pytest.mark.parametrize(
  'fields, message',
  (
    (dict(target='qwen9'), "target 'qwen9' is neither a directory, nor ..."),
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(context=0), 'context = 0, expected at least 1'),
    (dict(dtype='int8'), "dtype = 'int8', expected float32 or bfloat16"),
    ({'drafter.rank': 0}, 'rank = 0, expected at least 1'),
    ({'drafter.rank': 5000}, 'rank = 5000 exceeds min(width, vocab - 1) = ...'),
    ({'drafter.block': 1}, 'block = 1 leaves no slot to propose'),
  ),
)
def test_memory(fields, message, refused_by):
  refused_by('memory', message, **{'target': 'qwen3-8b'} | fields)


def write_data_file(path, head_hash='other', largest=9):
  """A data file with its manifest, as `write_data` leaves them."""
  tokens = np.zeros((4, 12), np.uint16)
  tokens[:, 3] = largest
  np.savez(path, tokens=tokens, answer=[2] * 4, length=[12] * 4)
  manifest = {
    'target': 'someone',
    'head_hash': head_hash,
    'sha256': hashlib.sha256(path.read_bytes()).hexdigest(),
  }
  path.with_name('manifest.json').write_text(json.dumps(manifest))


def test_train_drafter(refused_by, tmp_path):
  data = tmp_path / 'sequences.npz'

  def refused(message, **fields):
    refused_by('train_drafter', message, **dict(data=data) | fields)

  refused('{tmp}/sequences.npz: no such file; write it first')
  data.write_bytes(b'PK not an archive')
  refused('{tmp}/sequences.npz: not a data file (...)')
  write_data_file(data)
  refused(NOWHERE)  # nothing is wrong with the data
  refused('steps = 0, expected at least 1', **{'training.steps': 0})
  refused("dtype = 'half', expected float32 or bfloat16", dtype='half')
  tiny = {'target': TINY, 'drafter.rank': 8, 'drafter.taps': 1}
  refused('{tmp}/sequences.npz: written by someone, not by qwen3', **tiny)
  write_data_file(data, load_target(str(TINY)).head_hash)
  refused('... 5 taps, expected ...', **tiny | {'drafter.taps': 5})
  refused('4 sequences are less than one batch of 48; ...', **tiny)
  manifest = tmp_path / 'manifest.json'
  manifest.write_text('{')
  refused('{tmp}/manifest.json: not valid JSON')
  manifest.unlink()
  refused('{tmp}/manifest.json: no such file')


@pytest.mark.parametrize(
  'fields, message',
  (
    ({}, '{target}: no such file'),
    (dict(prompts='{tmp}/none.txt'), '{tmp}/none.txt: no such file'),
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(dtype='f4'), "dtype = 'f4', expected float32 or bfloat16"),
    (
      dict(length=200, max_prompt=193),
      'length = 200, expected at least 8 more than max_prompt = 193',
    ),
    ({'openings.code': -1}, 'openings.code = -1, expected at least 0'),
    ({'openings.like_given': 1}, 'openings.like_given needs prompts, a file'),
    (
      {f'openings.{kind}': 0 for kind in ('chat', 'code', 'problem')},
      'openings are all 0, and there are no prompts to answer',
    ),
    (dict(shard=0), 'shard = 0, expected at least 1'),
    (dict(turn_temperature=0.0), 'turn_temperature = 0.0, expected above 0'),
    (dict(mesh='rows=2'), "mesh = 'rows=2', expected sizes of data and model"),
    (dict(mesh='data=64'), "mesh = 'data=64' needs 64 devices, there are 1"),
    (
      dict(target=TINY),
      'length = 384 exceeds the context of 128 that qwen3 was trained for',
    ),
  ),
)
def test_write_data(fields, message, refused_by):
  refused_by('write_data', message.replace('{target}', NOWHERE), **fields)
