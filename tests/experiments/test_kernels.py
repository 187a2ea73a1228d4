"""Kernel timing and tuning, from end to end, with interpreted kernels."""

import json

import numpy as np

from experiments import kernel_cases
from experiments.tune_kernels import join
from pallas_kernels import tuning
from pallas_kernels.injection.config import Launch
from spinejax.report import results
from tests.experiments import binaries

ONE = '--config.ops=("transition",)'


def test_kernel_bench(tmp_path):
  done = binaries.fork(
    'kernel_bench', '--config=configs/kernel_bench.py:toy', ONE,
    '--config.shapes=("toy_1",)', f'--config.results={tmp_path}',
    '--config.outputs',
  )  # fmt: skip
  assert done.status == 0, done.err
  path = tmp_path / 'kernel_bench' / 'kernels.json'
  with np.load(path.with_suffix('.npz')) as arrays:
    assert arrays['transition/toy_1/output'].shape == (1, 3)
    assert arrays['device_kind'] == 'cpu'
  assert done.out.splitlines()[-1] == str(path)
  result = results.load(path)
  assert result['label'] == 'synthetic'
  (row,) = result['metrics']
  assert (row['op'], row['shape'], row['rows']) == ('transition', 'toy_1', 3)
  assert row['relative_error'] == 0 and 'failed' not in row
  assert row['speedup_vs_xla'] == row['xla_time_ms'] / row['time_ms']


def test_tune_kernels(tmp_path):
  done = binaries.fork(
    'tune_kernels', '--config=configs/tune_kernels.py:toy',
    '--config.ops=("injection",)', f'--config.out={tmp_path}',
  )  # fmt: skip
  assert done.status == 0, done.err
  path = tmp_path / 'injection' / 'cpu.json'
  assert done.out.splitlines()[-1] == str(path)
  entries = json.loads(path.read_text())['entries']
  assert sorted(entries) == ['128x64x64x64', '16x192x64x64', '8x128x64x64']
  for entry in entries.values():
    assert entry['time_us'] > entry['xla_us'] > 0 and entry['tried'] == 1


def test_bad_input(tmp_path):
  for module, fields, message in (
    ('kernel_bench', 'ops=("rope",)', "ops has 'rope', expected injection, tr"),
    ('kernel_bench', 'ops=()', 'ops is empty, expected at least one'),
    ('kernel_bench', 'repeats=0', 'repeats = 0, expected at least 1'),
    ('tune_kernels', 'ops=("rope",)', "ops has 'rope', expected injection, tr"),
  ):
    done = binaries.fork(
      module, f'--config=configs/{module}.py:toy', f'--config.{fields}'
    )
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f'error: {message}')


def test_counts_of_a_named_shape():
  """15.7 MB of weights of a layer of Qwen3-8B's injection, read once."""
  case = {c.shape: c for c in kernel_cases.cases('injection')}['qwen3-8b_1']
  weights = 2 * (1024 * 4096 + 3 * 512 * 1024 + 4096 * 512 + 512)
  assert case.bytes == weights + 2 * (2 * 16 * 4096 + 1024)
  assert case.flops == 16 * (weights - 2 * 512)
  assert case.layers() * weights > 2 * 60e6


def test_a_table_is_read_by_device_kind(tmp_path, monkeypatch):
  monkeypatch.setattr(tuning, '_ROOT', tmp_path)
  path = tuning.path_of('transition', 'NVIDIA H200')
  assert path == tmp_path / 'transition' / 'tuned' / 'nvidia_h200.json'
  path.parent.mkdir(parents=True)
  path.write_text('{"entries": {"1x2x3": {"config": {}}}}')
  tuning.table.cache_clear()
  assert tuning.table('transition', 'NVIDIA H200') == {'1x2x3': {'config': {}}}
  assert tuning.table('transition', 'cpu') == {}
  tuning.table.cache_clear()


def test_what_made_it_faster_is_joined():
  base = Launch(64, 128, 6)
  times = {
    base: 5.0,
    Launch(32, 128, 6): 4.0,
    Launch(16, 128, 6): 3.0,
    Launch(64, 64, 6): 6.0,
    Launch(64, 128, 4): 4.5,
    Launch(32, 64, 4): 1.0,  # more than one field: no evidence for either
  }
  assert join(times, base) == Launch(16, 128, 4)
  del times[base]
  assert join(times, base) == Launch(32, 64, 4)
