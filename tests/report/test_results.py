"""Result files: what goes in comes out, and nothing half-true goes in."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax import errors
from spinejax.report import results

START, END = '2026-01-31T12:00:00Z', '2026-01-31T12:05:00Z'
ROW = {'drafter': 'plain', 'tokens_per_round': 1.0, 'exact': 4, 'total': 4}


def build(metrics=(ROW,), **changes):
  fields = {
    'experiment': 'decode',
    'label': 'measured',
    'config': {'seed': 1},
    'started': START,
    'finished': END,
    'device_name': 'test bench',
    'device_kind': 'cpu',
  }
  return results.build(metrics=list(metrics), **(fields | changes))


def test_written_result_is_what_is_loaded(tmp_path):
  result = build()
  path = results.write(result, 'smollm2-cpu', tmp_path / 'new' / 'results')
  assert path == tmp_path / 'new/results/decode/smollm2-cpu.json'
  assert results.load(path) == result
  assert list(result) == [
    'experiment',
    'label',
    'device',
    'device_kind',
    'versions',
    'command',
    'config',
    'started',
    'finished',
    'metrics',
  ]


def test_scalars_and_vectors_of_numpy_and_jax_become_plain():
  row = {
    'i': np.int64(3),
    'f': jnp.bfloat16(1.5),
    'x': jnp.float32(0.25),
    'b': np.bool_(True),
    'none': None,
    'v': np.array([0.5, 0.25]),
    'w': jnp.arange(2),
    't': (1, None),
  }
  (got,) = build([row])['metrics']
  assert got == {
    'i': 3,
    'f': 1.5,
    'x': 0.25,
    'b': True,
    'none': None,
    'v': [0.5, 0.25],
    'w': [0, 1],
    't': [1, None],
  }
  assert [type(got[k]) for k in 'ifxb'] == [int, float, float, bool]


def test_config_may_nest_and_be_a_dataclass():
  @dataclasses.dataclass(frozen=True)
  class Config:
    width: int
    rates: tuple[float, ...]

  assert build(config={'model': Config(8, (0.5,)), 'n': np.int32(2)})[
    'config'
  ] == {'model': {'width': 8, 'rates': [0.5]}, 'n': 2}


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'label': 'guessed'},
      "label: 'guessed' is not one of measured, compiled, modelled, synthetic",
    ),
    (
      {'metrics': [ROW, {'joules': math.nan}]},
      "metrics row 1, key 'joules': nan is not a JSON number",
    ),
    (
      {'metrics': [{'p': [0.5, np.inf]}]},
      "metrics row 0, key 'p'[1]: inf is not a JSON number",
    ),
    (
      {'metrics': [{'p': {'a': 1}}]},
      "metrics row 0, key 'p': rows are flat, got a nested value",
    ),
    (
      {'metrics': [{'p': np.ones((2, 2))}]},
      "metrics row 0, key 'p': rows are flat, got a nested value",
    ),
    (
      {'metrics': [{'p': object()}]},
      "metrics row 0, key 'p': object is not a JSON value",
    ),
    ({'metrics': [{1: 2}]}, 'metrics row 0: key 1 is not a string'),
    ({'metrics': [{}]}, 'metrics row 0 is empty'),
    ({'metrics': []}, 'metrics is empty'),
    ({'config': {'a': {'f': len}}}, None),
    (
      {'config': {'a': {'rate': -math.inf}}},
      'config.a.rate: -inf is not a JSON number',
    ),
    (
      {'experiment': '../decode'},
      "experiment: '../decode' is not a plain file name",
    ),
    (
      {'started': '2026-01-31 12:00'},
      "started: '2026-01-31 12:00' is not UTC like 2026-01-31T12:00:00Z",
    ),
    (
      {'started': END, 'finished': START},
      f'finished {START} is before started {END}',
    ),
    (
      {'device_kind': None},
      'give both device_name and device_kind, or neither',
    ),
    ({'device_name': ''}, 'device is empty'),
  ],
)
def test_build_refuses(changes, message):
  if message is None:
    message = 'config.a.f: builtin_function_or_method is not a JSON value'
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    build(**changes)


@pytest.mark.parametrize('name', ['', '../x', 'a/b', '.hidden', 'a b'])
def test_write_refuses_a_name_that_is_a_path(tmp_path, name):
  with pytest.raises(ValueError, match='is not a plain file name'):
    results.write(build(), name, tmp_path)
  assert not list(tmp_path.iterdir())


def test_failed_write_keeps_the_old_file_and_leaves_no_litter(
  tmp_path, monkeypatch
):
  path = results.write(build(), 'a', tmp_path)
  before = path.read_bytes()

  def fail(*_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match='disk full'):
    results.write(build(config={'seed': 2}), 'a', tmp_path)
  assert path.read_bytes() == before
  assert os.listdir(path.parent) == ['a.json']


def test_write_respects_the_umask(tmp_path):
  old = os.umask(0o027)
  try:
    path = results.write(build(), 'a', tmp_path)
  finally:
    os.umask(old)
  assert path.stat().st_mode & 0o777 == 0o640


def _without(field):
  return lambda result: result.pop(field)


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_without('label'), 'label is missing'),
    (lambda r: r.update(metrics={}), 'metrics: expected list, got dict'),
    (lambda r: r.update(lable=1), "unknown field 'lable'"),
    (
      lambda r: r.update(metrics=[[1]]),
      'metrics row 0: expected an object, got list',
    ),
    (lambda r: r.update(label='x'), None),
  ],
)
def test_load_names_the_file_and_the_field(tmp_path, damage, message):
  path = results.write(build(), 'a', tmp_path)
  result = json.loads(path.read_text())
  damage(result)
  path.write_text(json.dumps(result))
  if message is None:
    message = "label: 'x' is not one of measured, compiled, modelled, synthetic"
  with pytest.raises(
    errors.InputError, match=f'^{re.escape(f"{path}: {message}")}$'
  ):
    results.load(path)


@pytest.mark.parametrize(
  ('data', 'message'),
  [
    (
      b'{"a": 1,\n "b"}',
      "not JSON: Expecting ':' delimiter at line 2, column 5",
    ),
    (b'{"a": NaN}', 'NaN is not a JSON number'),
    (b'[]', 'expected an object, got list'),
    (b'"\xff"', 'not UTF-8'),
    (None, 'No such file or directory'),
  ],
)
def test_load_refuses_what_is_no_result(tmp_path, data, message):
  path = tmp_path / 'a.json'
  if data is not None:
    path.write_bytes(data)
  with pytest.raises(
    errors.InputError, match=f'^{re.escape(f"{path}: {message}")}$'
  ):
    results.load(path)


def test_load_refuses_an_overflowing_number(tmp_path):
  path = results.write(build(), 'a', tmp_path)
  path.write_text(path.read_text().replace('1.0', '1e999'))
  with pytest.raises(errors.InputError, match="'tokens_per_round': inf is not"):
    results.load(path)


def test_command_of_a_script_and_its_paths(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  argv = [
    str(tmp_path / 'tools/run.py'),
    f'--config={tmp_path}/configs/a.py:demo',
    '--target=/data/models/some model',
    '/elsewhere/deep/file.json',
    '--note=two words',
    '--ratio=1/2',
    'https://example.org/a',
    'relative/path',
  ]
  assert results.command(argv) == (
    "python tools/run.py --config=configs/a.py:demo '--target=path/to/some"
    " model' path/to/file.json '--note=two words' --ratio=1/2"
    ' https://example.org/a relative/path'
  )


def test_command_of_an_installed_script():
  assert results.command(['/usr/bin/tool', '-v']) == 'tool -v'


def test_command_of_a_module(tmp_path):
  package = tmp_path / 'experiments'
  package.mkdir()
  (package / '__init__.py').touch()  # comes before the repository's own
  (package / 'decode.py').write_text(
    'from spinejax.report import results\nprint(results.command())\n'
  )
  root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.decode', '--a=1', 'b c'],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': root, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == "python -m experiments.decode --a=1 'b c'\n"


def test_paths_in_the_config_are_shortened():
  config = {'target': '/data/models/m.gguf', 'batches': ['1/2', '/a/b']}
  assert build(config=config)['config'] == {
    'target': 'path/to/m.gguf',
    'batches': ['1/2', 'path/to/b'],
  }


def test_versions_on_cpu(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_a=1 --xla_dump_to=/tmp/dump')
  monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
  found = results.versions()
  assert found['jax'] == jax.__version__
  assert found['numpy'] == np.__version__
  assert found['xla_flags'] == '--xla_a=1 --xla_dump_to=path/to/dump'
  assert {'python', 'jaxlib', 'spinejax', 'platform'} <= set(found)
  assert 'driver' not in found
  monkeypatch.delenv('XLA_FLAGS')
  assert 'xla_flags' not in results.versions()


def test_versions_name_driver_and_clocks_of_a_gpu(monkeypatch):
  def nvidia_smi(words, **_):
    if words[0] != 'nvidia-smi':
      raise FileNotFoundError
    line = '580.1, 1980 MHz, 3201 MHz, 700.00 W\n'
    return subprocess.CompletedProcess(words, 0, line * 2, '')

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(subprocess, 'run', nvidia_smi)
  found = results.versions()
  assert found['driver'] == '580.1'
  assert found['clocks'] == 'at most 1980 MHz core, 3201 MHz memory, 700.00 W'


def test_versions_without_the_tools(monkeypatch):
  def missing(*_, **__):
    raise FileNotFoundError

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(subprocess, 'run', missing)
  assert not {'driver', 'clocks', 'revision', 'dirty'} & set(results.versions())


@pytest.mark.parametrize(
  ('changes', 'dirty'), [('', False), (' M spinejax/axes.py', True)]
)
def test_versions_name_the_revision(monkeypatch, changes, dirty):
  answers = {
    'ls-files': 'results.py',
    'rev-parse': 'c0ffee',
    'status': changes,
  }

  def git(words, **_):
    return subprocess.CompletedProcess(words, 0, answers[words[1]], '')

  monkeypatch.setattr(subprocess, 'run', git)
  found = results.versions()
  assert found['revision'] == 'c0ffee'
  assert found['dirty'] is dirty


def test_device_is_named_with_its_cores():
  name, kind = results.device()
  assert kind == 'cpu'
  assert name.endswith(f'({os.cpu_count()} cores)')


def test_now_is_utc_to_the_second():
  assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', results.now())


def test_paths_in_quotes_are_shortened_too():
  words = ["--config.drafters=('ngram','/some/where/b')", '[/x/y]']
  line = results.command(['experiments/decode.py', *words])
  assert '/some' not in line and 'path/to/b' in line and '/x/y' not in line
  assert results.portable({'out': '/some/where/data', 'n': 3}) == {
    'out': 'path/to/data',
    'n': 3,
  }
