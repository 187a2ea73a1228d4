"""The operating map from a table of made-up rounds, and from limits alone."""

import pytest

from spinejax import report
from tests.energy import rounds
from tests.experiments import binaries


@pytest.fixture(scope='module')
def table(tmp_path_factory):
  root = tmp_path_factory.mktemp('table')
  result = report.results.build(
    'speculation_energy', 'synthetic', rounds.rows(), config={},
    started=report.results.now(), device_name='1 x NVIDIA H200',
    device_kind='NVIDIA H200',
  )  # fmt: skip
  return report.results.write(result, 'rounds', root=root)


def run(folder, variant, **fields) -> binaries.Done:
  fields = dict(results=folder, points=7, tokens=(2.0, 6.0)) | fields
  return binaries.fork(
    'operating_map',
    f'--config=configs/operating_map.py:{variant}',
    *(f'--config.{field}={value}' for field, value in fields.items()),
  )


def test_of_measured_rounds(tmp_path, table):
  done = run(tmp_path, 'qwen3_8b', table=table)
  assert done.status == 0, done.err
  path = tmp_path / 'operating_map' / 'map_qwen3_8b.json'
  assert done.out.splitlines()[-1] == str(path)
  assert path.with_suffix('.png').stat().st_size > 50_000
  assert done.out.startswith('synthetic on 1 x NVIDIA H200, qwen3-8b\n')
  result = report.results.load(path)
  assert result['label'] == 'synthetic'
  assert result['device_kind'] == 'NVIDIA H200'
  rows = result['metrics']
  held = [row for row in rows if row.get('split') == 'leave_one_place_out']
  assert [row['value'] for row in held] == ['joules', 'time_ms']
  for row in held:
    assert 0 < row['mape'] < 5 and row['sign_right'] > 0.95
    assert row['cells'] == 51  # three kinds of rounds at 17 places
  even = {
    (row['batch'], row['context']): row
    for row in rows
    if 'break_even_joules' in row
  }
  assert len(even) == 17
  one, many, long = (
    even[at]['break_even_joules'] for at in ((1, 128), (32, 128), (32, 16384))
  )
  assert one < long < many
  assert f'from {one:.2f}\ntokens a round (1 requests) to ' in done.out
  assert f'long contexts: at 32 requests it goes from {many:.2f} ' in done.out
  # By the law of joules, of what is measured in them with 6 tokens a round.
  own = {
    row['pays_over']: (row['low'], row['high'])
    for row in rows
    if 'pays_over' in row
    and (row['value'], row['tokens_per_round']) == ('joules', 6)
  }
  low, high = own['batch']
  assert low == 1 and 32 < high < 128  # break-evens 3.7 and 7.9 at 128
  low, high = own['context']
  assert 128 < low < 2048 and high is None  # 10.3 and 5.8 with 256 requests
  # Drafts of both widths at all places, two acceptances each.
  cells = [row for row in rows if 'region' in row]
  assert len(cells) == 2 * 2 * 17
  apart = sum(row['region'].endswith('only') for row in cells)
  assert f'otherwise than in time in {apart} of\n68 cells' in done.out


def test_of_limits_alone(tmp_path):
  done = run(tmp_path, 'modelled', chips=('v6e',))
  assert done.status == 0, done.err
  result = report.results.load(tmp_path / 'operating_map' / 'map_modelled.json')
  assert result['label'] == 'modelled' and result['device'] == 'v6e'
  even = {
    (row['batch'], row['context']): row['break_even_modelled']
    for row in result['metrics']
  }
  assert len(even) == 25 and min(even.values()) > 1
  assert even[1, 128] < 2 < even[256, 128] and even[256, 16384] < 2


@pytest.mark.parametrize(
  'variant, fields, message',
  (
    ('modelled', dict(chips=('v99',)), "chip 'v99', expected one of ..."),
    ('modelled', dict(chips='()'), 'table and chips are empty, expected one of '
     'them'),
    ('modelled', dict(tokens='(17.0,)'), 'tokens_per_round = 17.0, expected '
     '1..16 of 15 slots'),
    ('modelled', dict(contexts='(10, 10)'), 'contexts = 10..10, expected a '
     'range from 1 on'),
    ('qwen3_8b', dict(table='none.json'), "table = 'none.json' is "
     'not there: experiments.speculation_energy makes it, or take :modelled'),
    ('smollm2', {}, '...: no rounds of plain with 1 rows for smollm2-135m'),
  ),
)  # fmt: skip
def test_bad_input(variant, fields, message, tmp_path, table):
  if variant == 'smollm2':
    fields = dict(table=table)
  done = run(tmp_path, variant, **fields)
  assert done.status == 2, done.err
  line = done.err.splitlines()[-1]
  start, *rest = f'error: {message}'.split('...')
  assert line.startswith(start) and all(part in line for part in rest)
