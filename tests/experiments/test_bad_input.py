"""Bad input to the binaries: exit status 2, one line that names what is
wrong, and nothing written."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from experiments import common
from spinejax.target.loading import load_target
from spinejax.train.shards import Writer, Written
from tests.experiments import binaries

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
TINY = GOLDEN / 'transformers' / 'qwen3'
# A target that cannot be loaded: what is refused with it is refused before.
NOWHERE = 'no/such/target.gguf'
CONFIGS = {
  'acceptance': 'configs/acceptance.py:cpu',
  'decode': 'configs/decode_smollm2.py:demo',
  'memory': 'configs/memory.py',
  'train_drafter': 'configs/train_smollm2.py:toy',
  'write_data': 'configs/write_smollm2.py',
}
OUTPUT = {
  'acceptance': ('results',),
  'decode': ('results',),
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
    (
      'prompts',
      'arithmetic,arithmetic',
      "prompts: two are called 'arithmetic'",
    ),
    ('limit', -1, 'limit: expected at least 1, got -1'),
    ('block', 1, 'block = 1, expected at least 2'),
    ('temperature', -1, 'temperature = -1.0, expected ...'),
    ('top_p', 1.5, 'top_p = 1.5, expected above 0 and at most 1'),
    ('batch', 0, 'batch = 0, expected at least 1'),
    ('max_new_tokens', 0, 'max_new_tokens = 0, expected at least 1'),
    ('seed', -1, 'seed = -1, expected 0...'),
    ('inspect', -1, 'inspect = -1, expected 0..1000'),
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
  'fields, message',
  (
    ({'prompts': '{tmp}/a/x.txt,{tmp}/b/x.txt'}, "prompts: two are called 'x'"),
    ({'drafters': "('ngram', 'ngram')"}, "drafters: two are called 'ngram'"),
    # In a result file both would be called path/to/x.
    ({'drafters': "('/a/x', '/b/x')"}, "drafters: two are called 'path/to/x'"),
    (
      {'drafters': '()'},
      'drafters and temperatures, expected at least one ...',
    ),
    ({'offline': True}, 'temperatures = (0.0, 1.0), expected (0.0,) with ...'),
  ),
)
def test_acceptance(fields, message, refused_by, tmp_path):
  for name in 'ab':
    (tmp_path / name).mkdir()
    (tmp_path / name / 'x.txt').write_text('Hi.\n')
  refused_by('acceptance', message, **{'prompts': 'arithmetic'} | fields)


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
    ({'drafter.rank': 0}, 'rank = 0, expected an integer >= 1'),
    ({'drafter.rank': 5000}, 'rank = 5000 exceeds min(width, vocab - 1) = ...'),
    ({'drafter.block': 1}, 'block = 1 leaves no slot to propose'),
  ),
)
def test_memory(fields, message, refused_by):
  refused_by('memory', message, **{'target': 'qwen3-8b'} | fields)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """What `write_data` could have written with the tiny target."""
  folder = tmp_path_factory.mktemp('data')
  writer = Writer(folder, load_target(str(TINY)), shards=2, config={})
  for shard in range(2):
    writer.add(
      [Written('chat', np.full(12, 9 + 5 * shard + i), 4) for i in range(5)]
    )
  return folder


# A run that could start, but for what is wrong with it.
TRAINS = {
  'target': TINY, 'batch': 4, 'length': 64, 'holdout': 2, 'training.anchors': 3,
  'drafter.layers': 1, 'drafter.block': 4, 'drafter.mask_id': 3,
  'drafter.taps': 1, 'drafter.rank': 8, 'drafter.message': 8,
  'evaluate.max_new_tokens': 8,
}  # fmt: skip


@pytest.mark.parametrize(
  'fields, message',
  (
    ({'training.steps': 0}, 'steps = 0, expected an integer >= 1'),
    ({'training.learning_rate': 0.0}, 'learning_rate = 0.0, expected ...'),
    ({'every.save': -1}, 'save = -1, expected at least 0'),
    ({'dtype': 'half'}, "dtype = 'half', expected float32 or bfloat16"),
    ({'length': 0}, 'length = 0, expected at least 1'),
    ({'holdout': 0}, 'every.evaluate needs holdout, sequences to evaluate on'),
    ({'mesh': 'x=2'}, "mesh = 'x=2', expected sizes of data and model such"),
    ({'data': '{tmp}/no'}, '{tmp}/no: no such folder; write the data first'),
    ({'length': 129}, 'length = 129 exceeds the context of 128 that qwen3 ...'),
    ({'length': 11}, '{data}/shard-00000.arrayrecord: sequence 0 has 12 ...'),
    ({'training.anchors': 65}, 'anchors = 65, expected at most the 64 tokens'),
    ({'training.accumulate': 3}, 'batch = 4 is not a multiple of accumulate'),
    ({'batch': 9}, '8 sequences are less than one batch of 9; write more ...'),
    ({'holdout': 10}, 'holdout = 10, expected at least 0 and less than the 10'),
    ({'workers': -1}, 'workers = -1, expected at least 0'),
    ({'training.seed': -1}, 'seed = -1, expected 0..4294967295'),
    ({'method': 'eagle'}, "method = 'eagle', expected one of dflash, ..."),
    ({'method': 'dflash'}, "BackboneConfig has no field ..."),
    ({'drafter.taps': 9}, 'target of 3 layers has too few for 9 taps, ...'),
    ({'drafter.causal': False}, 'causal = False: DSpine is causal inside ...'),
    ({'loss.ce_end': 1.5}, 'ce_end = 1.5, expected 0..1'),
    (
      {'evaluate.max_new_tokens': 125},
      'prompt 0 has 4 tokens; with 125 new ones that exceeds the context of '
      '128 that qwen3 was trained for',
    ),
    (
      {'evaluate.max_new_tokens': 0},
      'max_new_tokens = 0, expected ...',
    ),
  ),
)  # fmt: skip
def test_train_drafter(fields, message, refused_by, data):
  message = message.replace('{data}', str(data))
  refused_by('train_drafter', message, **TRAINS | {'data': data} | fields)


def test_train_drafter_on_data_that_is_not_in_order(refused_by, data, tmp_path):
  def refused(message, **fields):
    refused_by('train_drafter', message, **TRAINS | fields)

  harmed = tmp_path / 'harmed'
  shutil.copytree(data, harmed)
  shard = harmed / 'shard-00001.arrayrecord'
  shard.write_bytes(shard.read_bytes()[:-1])
  refused(f'{shard}: damaged (its SHA-256 is ...', data=harmed)
  manifest = json.loads((harmed / 'manifest.json').read_text())
  manifest |= {'head_hash': 'ab', 'target': 'someone'}
  (harmed / 'manifest.json').write_text(json.dumps(manifest))
  refused(f'{harmed}: written by someone, not by qwen3', data=harmed)
  empty = tmp_path / 'empty'
  Writer(empty, load_target(str(TINY)), shards=1, config={}).add([])
  refused(f'{empty}: has no sequences', data=empty)
  (tmp_path / 'file').touch()
  refused('{tmp}/file/x: Not a directory', data=data, out='{tmp}/file/x')


def test_folders_that_a_run_would_harm(refused_by, data, tmp_path):
  def refused(out, message, binary='train_drafter'):
    (tmp_path / out).mkdir(exist_ok=True)
    fields = TRAINS | {'data': data} if binary == 'train_drafter' else {}
    out = tmp_path / out
    refused_by(binary, f'{out}{message}', **fields | {'out': out})

  (tmp_path / 'old').mkdir()
  (tmp_path / 'old' / 'checkpoints').touch()
  refused('old', '/checkpoints: File exists')
  (tmp_path / 'model').mkdir()
  shutil.copy(TINY / 'config.json', tmp_path / 'model')
  refused('model', ': holds a model that was not trained here; choose another')
  (tmp_path / 'busy').mkdir()
  handle = common.hold(tmp_path / 'busy')
  for binary in ('train_drafter', 'write_data'):
    refused('busy', ': another process is writing there; wait ...', binary)
  os.close(handle)


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
