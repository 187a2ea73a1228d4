"""Measuring energy end to end, by a power log instead of a counter."""

import csv
import json
import pathlib
import time

import pytest

from spinejax.energy import simple
from spinejax.energy.cells import read_csv
from spinejax.report import results
from tests.experiments import binaries

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers'
TINY = {
  'families.smollm2': (str(GOLDEN / 'qwen3'), str(GOLDEN / 'llama')),
  'baseline': str(GOLDEN / 'qwen3'),
  'seconds': 0.1, 'settle': 0.02, 'idle_seconds': 0.12, 'name': 'tiny',
  'whole': (('qwen3', 32, 32),), 'contexts': ((16, 96), (96, 224)),
}  # fmt: skip


@pytest.fixture(scope='module')
def power(tmp_path_factory):
  """100 W, every 10 ms of the next minutes."""
  path = tmp_path_factory.mktemp('power') / 'power.csv'
  began = time.time() - 1
  lines = (f'{began + i / 100:.2f},100' for i in range(30_000))
  path.write_text('\n'.join(['time,watts', *lines]))
  return path


@pytest.fixture(scope='module')
def shallow(tmp_path_factory):
  """Two models of one layer, which compile quickly."""
  folder = tmp_path_factory.mktemp('models')
  for name in ('qwen3', 'llama'):
    config = json.loads((GOLDEN / name / 'config.json').read_text())
    (folder / name).mkdir()
    config = json.dumps(config | dict(num_hidden_layers=1))
    (folder / name / 'config.json').write_text(config)
  return {
    'families.smollm2': (str(folder / 'qwen3'), str(folder / 'llama')),
    'baseline': str(folder / 'qwen3'), 'capacities': (320,),
    'contexts': ((16, 224),),
  }  # fmt: skip


def run(folder, power, programs=None, **fields) -> binaries.Done:
  fields = TINY | dict(meter=f'csv:{power}', results=folder) | fields
  return binaries.fork(
    'measure_energy',
    '--config=configs/measure_energy.py:cpu',
    *(f'--config.{field}={value}' for field, value in fields.items()),
    programs=programs,
  )


def test_measured_in_two_runs(tmp_path, power, shallow):
  # No time for a second model: a budget is spent before it is begun.
  programs = tmp_path / 'programs'
  done = run(tmp_path, power, programs, budget_minutes=0.001, **shallow)
  assert done.status == 0, done.err
  folder = tmp_path / 'measure_energy'
  path, table = folder / 'tiny.json', folder / 'tiny.csv'
  assert done.out.splitlines()[-1] == str(path)
  assert 'left for the same command again: ' in done.out
  first = results.load(path)
  assert first['label'] == 'measured'
  one = {row['target'] for row in first['metrics'] if row['kind'] == 'cell'}
  assert len(one) == 1

  done = run(tmp_path, power, programs, **shallow)
  assert done.status == 0, done.err
  assert 'left' not in done.out
  rows = results.load(path)['metrics']
  for name in ('qwen3', 'llama'):
    own = [row for row in rows if row['target'] == name]
    kinds = [row['kind'] for row in own]
    assert kinds.count('prefill') == 2 and kinds.count('decode') == 2
    assert kinds.count('idle') == 2
    assert kinds.count('whole') == (name == 'qwen3')
  # What was there stayed as it was.
  kept = [row for row in first['metrics'] if row['kind'] == 'decode']
  assert kept and all(row in rows for row in kept)
  for row in rows:
    if row['kind'] in ('prefill', 'decode'):
      assert row['watts'] == pytest.approx(100, rel=1e-3)
      assert row['joules'] == pytest.approx(100 * row['seconds'], rel=1e-3)
  assert len([row for row in rows if row['kind'] == 'baseline']) == 4

  # The table is what the laws read.
  cells, joules_N = read_csv(table)
  assert len(cells) == 2 * 9 + 1 and set(cells.models) == {'qwen3', 'llama'}
  with open(table, newline='') as file:
    lines = list(csv.DictReader(file))
  (whole,) = [line for line in lines if line['how'] == 'whole']
  assert float(whole['composed']) > 0 and whole['batch'] == '2'
  for line in lines:
    assert abs(float(line['joules_net'])) < 0.01 * float(line['joules'])
  simple.Simple('three_term').fit(cells, joules_N)

  done = run(tmp_path, power, programs, rounds=4, **shallow)
  assert done.status == 2
  assert done.err.splitlines()[-1] == (
    f'error: rounds = 4, but {path} has 8: give another name'
  )


@pytest.mark.parametrize(
  'fields, message',
  (
    (dict(meter='gpu'), 'meter gpu: ...'),
    (dict(meter='csv:none.csv'), 'none.csv: No such file or directory'),
    (dict(seconds=0), 'seconds = 0.0, expected more than 0'),
    (dict(lengths='()'), 'lengths is empty, expected at least one'),
    (dict(lengths='(500,)'), '1000 tokens, expected at most 318'),
    (dict(contexts='((16,),)'), 'contexts are of 1 caches, expected those of 2 '
     'capacities'),
    (dict(whole="(('qwen3', 7, 9),)"), 'whole has qwen3 with a prompt of 7, '
     'expected a model of families and a length of prompts'),
    (dict(whole="(('qwen3', 32, 128),)"), 'whole: 32 + 128 tokens need another '
     'capacity than prompts of 32'),
    ({'families.smollm2': ('qwen9',)}, "target 'qwen9' is neither ..."),
  ),
)  # fmt: skip
def test_bad_input(fields, message, tmp_path, power):
  done = run(tmp_path, power, **fields)
  assert done.status == 2, done.err
  line = done.err.splitlines()[-1]
  start, *rest = f'error: {message}'.split('...')
  assert line.startswith(start) and all(part in line for part in rest)
