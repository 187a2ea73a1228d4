"""Measuring rounds end to end, by a power log instead of a counter."""

import json
import pathlib
import time

import pytest

from spinejax.energy.operating import merged
from spinejax.report import results
from tests.experiments import binaries

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers'


@pytest.fixture(scope='module')
def power(tmp_path_factory):
  """100 W, every 10 ms of the next minutes."""
  path = tmp_path_factory.mktemp('power') / 'power.csv'
  began = time.time() - 1
  lines = (f'{began + i / 100:.2f},100' for i in range(30_000))
  path.write_text('\n'.join(['time,watts', *lines]))
  return path


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """A model of three layers, the fewest that can be tapped."""
  folder = tmp_path_factory.mktemp('models') / 'tiny'
  folder.mkdir()
  config = json.loads((GOLDEN / 'qwen3' / 'config.json').read_text())
  config = json.dumps(config | dict(num_hidden_layers=3))
  (folder / 'config.json').write_text(config)
  return folder


def run(folder, power, small, programs=None, **fields) -> binaries.Done:
  fields = dict(
    targets=((str(small), 16, 16),), baseline=small, batches=(2,),
    contexts=(32, 96), whole=((2, 96, 2.0),), seconds=0.1, settle=0.02,
    call_seconds=0.02, idle_seconds=0.12, name='tiny', again=0.25, texts=(),
    tokens=(1.0, 3.0), results=folder, meter=f'csv:{power}',
    **{'drafter.layers': 1, 'drafter.taps': 1},
  ) | fields  # fmt: skip
  return binaries.fork(
    'speculation_energy',
    '--config=configs/speculation_energy.py:cpu',
    *(f'--config.{field}={value}' for field, value in fields.items()),
    programs=programs,
  )


def test_measured_in_two_runs(tmp_path, power, small):
  programs = tmp_path / 'programs'
  # A budget that is spent before the second window.
  done = run(tmp_path, power, small, programs, budget_minutes=0.001)
  assert done.status == 0, done.err
  path = tmp_path / 'speculation_energy' / 'tiny.json'
  assert done.out.splitlines()[-1] == str(path)
  assert 'left for the same command again: ' in done.out
  first = results.load(path)
  assert first['label'] == 'measured'

  done = run(tmp_path, power, small, programs)
  assert done.status == 0, done.err
  assert 'left' not in done.out
  rows = results.load(path)['metrics']
  kinds = [row['kind'] for row in rows]
  # Plain and drafted at two places, and one of the four a second time.
  assert kinds.count('round') == 4 + 1 and kinds.count('whole') == 1
  assert kinds.count('baseline') == 4
  kept = [row for row in first['metrics'] if row['kind'] == 'round']
  assert kept and all(row in rows for row in kept)
  for row in rows:
    if row['kind'] == 'round':
      assert row['watts'] == pytest.approx(100, rel=1e-3)
      assert row['joules'] == pytest.approx(0.1 * row['time_ms'], rel=1e-3)
      assert row['tokens_per_round'] == 1 and row['capacity'] == 128
  (whole,) = [row for row in rows if row['kind'] == 'whole']
  # Four rounds of two requests, at the mean that was asked for.
  assert 1.2 < whole['tokens_per_round'] < 3.2
  each = whole['joules_per_token'] * 2 * whole['tokens_per_round']
  one = next(
    row for row in merged(rows)
    if (row['drafter'], row['batch'], row['context']) == ('dspine', 2, 96)
  )  # fmt: skip
  assert each == pytest.approx(one['joules'], rel=1)
  assert f'whole: tiny, dspine, batch 2, context 96, {whole[
    "tokens_per_round"]:.2f} tokens a round: ' in done.out  # fmt: skip

  # Tokens of plain steps, and of two acceptances at each place.
  table = [row for row in rows if row['kind'] == 'cell']
  assert len(table) == 2 + 2 * 2
  for cell in table:
    if cell['drafter'] == 'plain':
      assert cell['tokens_per_round'] == 1 and 'region' not in cell
    elif cell['dataset'] == '1 of 4 rows':
      assert cell['acceptance_is'] == 'synthetic'
      assert cell['tokens_per_round'] == pytest.approx(1)
      watts = cell['joules_per_token'] * cell['tokens_per_s']
      assert watts == pytest.approx(100, rel=1e-3)

  done = run(tmp_path, power, small, programs, rounds=2)
  assert done.status == 2
  assert done.err.splitlines()[-1] == (
    f'error: rounds = 2, but {path} has 4: give another name'
  )


@pytest.mark.parametrize(
  'fields, message',
  (
    (dict(meter='gpu'), 'meter gpu: ...'),
    (dict(again=2.0), 'again = 2.0, expected between 0 and 1'),
    (dict(contexts='(5,)'), 'contexts has 5, expected whole numbers >= 6'),
    (dict(batches='()'), 'batches is empty, expected at least one'),
    (dict(drafters="(('eagle', 4, ()),)"), "drafters has 'eagle' of 4 rows, "
     'expected one of dspine, dflash2, dflash of 2 or more'),
    (dict(drafters="(('dspine', 4, (8,)),)"), 'drafters: dspine at batch 8, '
     'expected one of batches = (2,)'),
    (dict(whole='((2, 64, 2.0),)'), 'whole has batch 2 at context 64, expected '
     'some of batches and contexts'),
    (dict(tokens='(9.0,)'), 'tokens_per_round = 9.0, expected 1..4 of 3 slots'),
    (dict(contexts='(10000000000,)', whole='()'), 'tiny: no batch and context '
     'fits, the least needs ... GiB, ... GiB are free'),
  ),
)  # fmt: skip
def test_bad_input(fields, message, tmp_path, power, small):
  done = run(tmp_path, power, small, **fields)
  assert done.status == 2, done.err
  line = done.err.splitlines()[-1]
  start, *rest = f'error: {message}'.split('...')
  assert line.startswith(start) and all(part in line for part in rest)
