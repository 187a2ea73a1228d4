"""Drafters under load, from end to end and taken up again; and what a run
refuses."""

import dataclasses
import pathlib

import pytest

from configs import throughput as configs
from experiments import throughput, workload
from spinejax.report import results
from spinejax.target.loading import Target
from spinejax.target.presets import preset
from tests.experiments import binaries

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'
SMALL = {
  'target': TINY, 'dtype': 'float32', 'block': 3, 'drafters': "('dflash',)",
  'prompt_tokens': 20, 'max_new_tokens': 12, 'concurrencies': '(1,)',
  'per_client': 2, 'requests': 4, 'rates': '(50.0,)', 'arrivals': 3,
  'acceptance.paper.dflash': 2.0, 'acceptance.measured': 'same',
  'prefix.tokens': 64, 'prefix.repeats': 1, 'engine.chunks': '(16,)',
  'drafter.layers': 1, 'drafter.taps': 1, 'drafter.rank': 8,
  'drafter.message': 8, 'name': 'tiny', 'schedule': True,
}  # fmt: skip


def run(folder, **fields) -> binaries.Done:
  fields = SMALL | fields
  fields |= {
    'acceptance.measured': folder / 'measured.json',
    'results': folder / 'results',
  }  # fmt: skip
  return binaries.fork(
    'throughput',
    '--config=configs/throughput.py:qwen3_8b',
    *(f'--config.{field}={value}' for field, value in fields.items()),
    programs=folder / 'programs',
  )


@pytest.fixture
def folder(tmp_path):
  """One with acceptance that was measured elsewhere, of more slots."""
  row = {'drafter': 'dflash', 'acceptance_by_position': [0.5, 0.5, 0.1]}
  result = results.build(
    'measured', 'measured', [row, row | {'acceptance_by_position': [0.0] * 3}],
    config={}, started=results.now(),
  )  # fmt: skip
  written = results.write(result, 'x', root=tmp_path)
  written.rename(tmp_path / 'measured.json')
  return tmp_path


def test_throughput(folder):
  done = run(folder)
  assert done.status == 0, done.err
  path = folder / 'results' / 'throughput' / 'tiny.json'
  assert done.out.splitlines()[-1] == str(path)
  result = results.load(path)
  assert result['label'] == 'synthetic'
  rows = [row for row in result['metrics'] if 'repeats' not in row]
  *loads, prefix = rows
  assert [(r['dataset'], r['load'], throughput.name_of(r)) for r in loads] == [
    (name, load, drafter)
    for name in ('measured', 'paper')
    for load in ('closed', 'open')
    for drafter in ('plain', 'dflash', 'dflash, scheduled')
  ]
  assert 'closed 1' in done.out and 'open 50/s' in done.out
  for row in loads:
    assert row['emitted'] == 12 * row['requests']
    assert row['requests'] == (4 if row['load'] == 'closed' else 3)
    assert row['ttft_ms_p50'] <= row['ttft_ms_p95'] <= row['ttft_ms_p99']
    if row.get('scheduled'):
      ran = sum(row[f'{kind}_rounds'] for kind in ('plain', 'packed', 'padded'))
      assert 0 < ran <= row['emitted']
      assert row['budgets'][0] == 0 and min(row['budget_ms']) > 0
    else:
      assert (row['tokens_per_round'] > 1) == (row['drafter'] == 'dflash')
  # Of 0.25 in both slots: the mean over the rows of the file.
  first, second = loads[1]['acceptance_by_position']
  assert first == second
  assert (prefix['load'], prefix['drafter']) == ('prefix', 'dflash')
  assert prefix['cached_tokens'] == 48
  assert prefix['exact'] == prefix['total'] == 2
  assert path.with_suffix('.png').stat().st_size > 10_000
  assert list((folder / 'results' / 'throughput' / 'tiny').glob('events.*'))

  again = run(folder)
  assert again.status == 0, again.err
  assert results.load(path)['metrics'] == result['metrics']
  assert again.out == done.out


def test_other_settings_are_refused(tmp_path, refused):
  config = configs.get_config('qwen3_8b')
  row = {'load': 'closed', 'drafter': 'plain'}
  result = results.build(
    'throughput', 'synthetic', [row, row | {'repeats': 1}],
    config=config.to_dict(), started=results.now(),
  )  # fmt: skip
  path = results.write(result, 'x', root=tmp_path)
  config.concurrencies, config.rates, config.repeats = (64,), (), 2
  assert throughput.resumed(config, path) == [row]
  config.max_new_tokens = 9
  with refused(f'max_new_tokens = 9, but {path} was begun with 512; ...'):
    throughput.resumed(config, path)


def test_rows_are_kept_of_the_same_things_only(tmp_path, refused):
  """Distributions may be added, but one that was measured stays."""
  config = configs.get_config('qwen3_8b')
  rows = [
    {'load': 'closed', 'drafter': 'plain', 'dataset': 'paper'},
    {'load': 'prefix', 'drafter': 'plain'},
  ]
  result = results.build(
    'throughput', 'synthetic', rows, config=config.to_dict(),
    started=results.now(),
  )  # fmt: skip
  path = results.write(result, 'x', root=tmp_path)
  config.acceptance.measured = 'another.json'  # of which there are no rows
  config.acceptance.mine = 3.0
  config.prefix.repeats = 9
  assert throughput.resumed(config, path) == rows
  config.prefix.tokens = 9
  with refused(f'prefix.tokens = 9, but {path} was begun with 4096; ...'):
    throughput.resumed(config, path)
  config.prefix.tokens = 4096
  config.acceptance.paper.dspine = 2.0
  with refused(f'acceptance.paper.dspine = 2.0, but {path} was begun with ...'):
    throughput.resumed(config, path)
  config = configs.get_config('cpu')
  rows = [{'load': 'closed', 'drafter': 'dspine', 'dataset': 'mine'}]
  config.prompts = 'here/mine.jsonl'
  result = results.build(
    'throughput', 'measured', rows, config=config.to_dict(),
    started=results.now(),
  )  # fmt: skip
  path = results.write(result, 'y', root=tmp_path)
  config.prompts = 'humaneval,here/mine.jsonl'
  config.drafters = (*config.drafters, 'ngram')
  assert throughput.resumed(config, path) == rows
  config.prompts = 'there/mine.jsonl'
  with refused("prompts = ['there/mine.jsonl'], but ..."):
    throughput.resumed(config, path)
  config.prompts, config.drafters = 'here/mine.jsonl', ('my_dspine',)
  with refused("drafters = ['my_dspine'], but ..."):
    throughput.resumed(config, path)


@pytest.mark.parametrize(
  'variant, change, message',
  (
    ('cpu', dict(concurrencies=(0,)), 'concurrencies has 0, expected at ...'),
    ('cpu', dict(concurrencies=()), 'concurrencies is empty, expected at ...'),
    ('cpu', dict(rates=(0.0,)), 'rates has 0.0, expected above 0'),
    ('cpu', dict(drafters=('plain',)), 'drafters: plain is always run, ...'),
    ('cpu', dict(per_client=0), 'per_client = 0, expected at least 1'),
    ('cpu', dict(temperature=-1.0), 'temperature = -1.0, expected 0 ...'),
    ('cpu', {'prefix.cached': 1.0}, 'prefix.cached = 1.0, expected ...'),
    (
      'cpu',
      {'engine.chunks': (9, 3)},
      'chunks = (9, 3), expected ...',
    ),
    (
      'qwen3_8b',
      dict(drafters=('x',)),
      "drafters has 'x', expected ...",
    ),
  ),
)
def test_bad_input(variant, change, message, refused):
  config = configs.get_config(variant)
  config.update_from_flattened_dict(change)
  with refused(message):
    throughput.check(config)


@pytest.mark.parametrize(
  'given, message',
  (
    ({}, 'acceptance.x: dspine has None, expected a number or at ...'),
    ({'dspine': 9.0}, 'tokens_per_round = 9.0, expected 1..4 of 3 slots'),
    (
      {'dspine': (0.5, 0.2)},
      'acceptance.x: dspine has (0.5, 0.2), ...',
    ),
    (
      {'dspine': (0.5, 0.6, 0.1)},
      '... dspine has (0.5, 0.6, 0.1), ...',
    ),
    (
      {'dspine': (1.5, 0.6, 0.1)},
      '... dspine has (1.5, 0.6, 0.1), ...',
    ),
  ),
)
def test_bad_acceptance(given, message, refused):
  config = configs.get_config('qwen3_8b')
  config.drafters, config.acceptance = ('dspine',), {'x': given}
  with refused(message):
    workload.survival_of(config, 'x', 3)


@pytest.mark.parametrize(
  'longest, message',
  (
    (290, 'prompt has 290 tokens; with 32 new ones that exceeds the ...'),
    (9, 'prompt has 512 tokens; with 16 new ones that exceeds the ...'),
  ),
)
def test_beyond_the_context(longest, message, refused):
  cfg = dataclasses.replace(preset('smollm2-135m'), max_position=300)
  target = Target('x', cfg, None, None, None)
  with refused(message):
    throughput.check_sizes(configs.get_config('cpu'), target, {}, longest, 512)


def test_summary():
  """Medians over the repeats, and ratios of them at the same load."""
  rows = [
    {'dataset': 'd', 'load': 'closed', 'concurrency': 2, 'repeat': repeat,
     'drafter': drafter, 'tokens_per_s': speed}
    for drafter, speeds in (('plain', (1.0, 2.0, 9.0)),
                            ('dflash', (3.0, 4.0, 4.0)),
                            ('dspine', (5.0, 6.0, 7.0)))
    for repeat, speed in enumerate(speeds)
  ]  # fmt: skip
  rows.append(rows[-1] | {'tokens_per_s': 8.0, 'scheduled': True})
  plain, dflash, dspine, scheduled = throughput.summary(rows)
  assert [r['tokens_per_s'] for r in (plain, dflash, dspine)] == [2, 4, 6]
  assert scheduled['speedup_vs_plain'] == 4 and scheduled['repeats'] == 1
  assert dspine['speedup_vs_plain'] == 3 and dspine['repeats'] == 3
  assert dspine['speedup_vs_dflash'] == 1.5
  assert 'speedup_vs_plain' not in plain
