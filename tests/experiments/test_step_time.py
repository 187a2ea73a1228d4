"""The clock of steps and rounds, from end to end."""

import pathlib

import pytest

from spinejax.decode.round import STAGES
from spinejax.report import profile, results
from tests.experiments import binaries

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'
SMALL = dict(
  targets=f"('{TINY}',)", batches='(2,)', contexts='(30,)', rows='(1, 3)',
  drafters="('dspine', 'dflash')", rounds=4, repeats=2, name='tiny',
)  # fmt: skip
SHAPE = dict(layers=1, block=4, taps=1, rank=16, message=8)


def run(folder, **fields) -> binaries.Done:
  fields = SMALL | {f'drafter.{k}': v for k, v in SHAPE.items()} | fields
  fields |= dict(results=folder / 'results')
  return binaries.fork(
    'step_time',
    '--config=configs/step_time.py:cpu',
    *(f'--config.{field}={value}' for field, value in fields.items()),
  )


def test_step_time(tmp_path):
  done = run(tmp_path)
  assert done.status == 0, done.err
  lines = done.out.splitlines()
  path = tmp_path / 'results' / 'step_time' / 'tiny.json'
  assert lines[-1] == str(path)
  assert lines[0].startswith('synthetic (random weights) on ')
  result = results.load(path)
  assert result['label'] == 'synthetic'
  copy, *table = result['metrics']
  assert copy['op'] == 'copy' and copy['bytes_per_s'] > 1e8
  rounds = [row for row in table if 'stage' not in row]
  assert [(row['drafter'], row['rows']) for row in rounds] == [
    ('plain', 1), ('plain', 3), ('dspine', 4), ('dflash', 4),
    # Half the rows, then no drafts but a drafter that is kept ready.
    ('plain', 3), ('dspine', 4), ('dflash', 4), ('dspine', 1), ('dflash', 1),
  ]  # fmt: skip
  assert [row.get('budget') for row in rounds[4:]] == [3, 4, 4, 0, 0]
  for row in rounds[4:]:
    padded = next(x for x in rounds[1:] if x['drafter'] == row['drafter'])
    assert row['speedup_vs_padded'] == padded['time_ms'] / row['time_ms']
  assert any('3, 3 in all' in line for line in lines)
  assert any(line.startswith('dspine, 4 rows packed, for') for line in lines)
  for row in rounds:
    assert row['time_ms_low'] <= row['time_ms'] <= row['time_ms_high']
    assert row['bandwidth_fraction'] > 0
    assert row['context'] == 30 and row['capacity'] == 128
  assert rounds[0]['plain_steps'] == 1
  for row in rounds[2:4]:
    check_parts(row, table)
  # A trace of each for TensorBoard, and the scalars beside.
  logs = tmp_path / 'results' / 'step_time' / 'tiny'
  assert len(list(logs.glob('qwen3_*/plugins/profile/*/*.xplane.pb'))) == 2
  assert len(list(logs.glob('events.*'))) == 1


def check_parts(row, table):
  """Stages add up to the round, and kinds of operations to their stage."""
  parts = [
    part
    for part in table
    if 'stage' in part and part['drafter'] == row['drafter']
  ]
  stages = {part['stage']: part for part in parts if 'kind' not in part}
  assert list(stages) == [*STAGES, profile.OTHER]
  total = sum(part['share'] for part in stages.values())
  assert total == pytest.approx(1)
  assert stages['verify']['share'] > stages['commit']['share'] > 0
  total = sum(part['time_ms'] for part in stages.values())
  assert total == pytest.approx(row['time_ms'])
  for stage, whole in stages.items():
    kinds = [x for x in parts if x['stage'] == stage and 'kind' in x]
    total = sum(part['share'] for part in kinds)
    assert total == pytest.approx(whole['share'])


def test_without_a_drafter_the_widest_step_is_profiled(tmp_path):
  done = run(tmp_path, drafters='()', rows='(2,)')
  assert done.status == 0, done.err
  path = done.out.splitlines()[-1]
  _, row, packed, *parts = results.load(path)['metrics']
  assert (row['drafter'], row['rows']) == ('plain', 2)
  assert 'plain_steps' not in row
  assert 'busy_ms' in row and 'busy_ms' not in packed
  assert {part['rows'] for part in parts} == {2}


@pytest.mark.parametrize(
  'fields, message',
  (
    (dict(targets="('qwen9',)"), "target 'qwen9' is neither a directory, ..."),
    (dict(targets='()'), 'targets is empty, expected at least one'),
    (dict(batches='(0,)'), 'batches has 0, expected whole numbers >= 1'),
    (dict(contexts='(1,)'), 'contexts has 1, expected whole numbers >= 2'),
    (dict(rows="('a',)"), "rows has 'a', expected whole numbers >= 1"),
    (
      dict(drafters="('x',)"),
      "drafters has 'x', expected one of dspine, dflash2, dflash",
    ),
    (dict(packed='(1.5,)'), 'packed has 1.5, expected shares in (0, 1)'),
    (dict(packed='(0.5, 0.5)'), 'packed: two are called 0.5'),
    (dict(rounds=0), 'rounds = 0, expected at least 1'),
    (dict(capacity=37), 'capacity = 37 is too small: context 30 needs 38'),
    (dict(batches='(10_000_000,)'), '..., batch 10000000, capacity 128: ...'),
    ({'drafter.rank': 99}, 'rank = 99 exceeds min(width, vocab - 1) = 32'),
  ),
)
def test_bad_input(fields, message, tmp_path):
  done = run(tmp_path, **fields)
  assert done.status == 2, done.err
  (line,) = done.err.splitlines()
  start, *rest = f'error: {message}'.split('...')
  assert line.startswith(start)
  assert all(part in line for part in rest)
  assert not list(tmp_path.rglob('*.*'))
