"""The table of platforms, from end to end, at toy shapes."""

import numpy as np

from experiments import kernel_cases, platforms_here
from experiments.kernel_timing import Stack, outputs_key
from spinejax.report import results
from tests.experiments import binaries


def run(tmp_path, **fields) -> binaries.Done:
  fields |= dict(results=tmp_path)
  return binaries.start(
    'platforms', '--config=configs/platforms.py:toy',
    *(f'--config.{field}={value}' for field, value in fields.items()),
  )  # fmt: skip


def test_platforms(tmp_path):
  done = run(
    tmp_path, platforms="('h100','v5e')", ops="('transition',)", round='False'
  )
  assert done.status == 0, done.err
  result = results.load(tmp_path / 'platforms' / 'platforms.json')
  assert result['label'] == 'compiled'
  assert [(r['platform'], r['shape']) for r in result['metrics']] == [
    ('h100', 'toy_1'), ('h100', 'toy_2'), ('v5e', 'toy_1'), ('v5e', 'toy_2'),
  ]  # fmt: skip
  for row in result['metrics']:
    assert row['modelled_time_ms'] > 0
    assert ('compiled_time_ms' in row) == (row['platform'] == 'v5e')
  assert (tmp_path / 'platforms' / 'platforms.png').stat().st_size > 1000


def test_what_runs_here_is_beside_them(tmp_path, monkeypatch):
  flag = '--xla_force_host_platform_device_count=3'
  monkeypatch.setenv('XLA_FLAGS', flag)
  done = run(
    tmp_path, platforms="('v5e',)", ops="('transition',)", platform='cpu',
    mesh='model=3',
  )  # fmt: skip
  assert done.status == 0, done.err
  rows = results.load(tmp_path / 'platforms' / 'platforms.json')['metrics']
  assert [(r['platform'], r['op']) for r in rows] == [
    ('cpu', 'transition'), ('cpu', 'transition'), ('cpu', 'round'),
    ('v5e', 'transition'), ('v5e', 'transition'), ('v5e', 'round'),
  ]  # fmt: skip
  assert all(r['time_ms'] > 0 for r in rows if r['platform'] == 'cpu')


def test_a_platform_that_this_is_not(tmp_path):
  for field, value, message in (
    ('platform', 'tpu', "platform = 'tpu', but JAX runs on 'cpu' here"),
    ('mesh', 'model=2', 'mesh: only of a round that runs here; give platform'),
    ('outputs', tmp_path / 'none.npz', 'outputs = '),
  ):
    done = run(tmp_path, **{field: value})
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f'error: {message}')


def test_outputs_of_another_device_are_compared(tmp_path):
  """Against the reference's, with one output of 15 rows off by a tenth."""
  case = next(
    c for c in kernel_cases.cases('injection', toy=True) if c.rows == 15
  )
  stack = Stack(case, 1)
  output = stack.one(case.reference).copy()
  output[0, 0] *= 1.1
  arrays = {outputs_key(case, i): x for i, x in enumerate(stack.inputs())}
  arrays[outputs_key(case, 'output')] = output
  np.savez(tmp_path / 'x.npz', device_kind='other', **arrays)
  (row,) = platforms_here.agreement(str(tmp_path / 'x.npz'))
  assert row['compared_with'] == 'other' and row['shape'] == case.shape
  assert row['relative_error'] < 1e-2
  assert 0.01 < row['relative_difference'] < 0.05
