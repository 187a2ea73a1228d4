"""What a study keeps, refuses and makes of its rows."""

import types

import pytest
from ml_collections import ConfigDict

from experiments import study
from spinejax import report
from spinejax.prompts import PromptSet

RUNS = {
  'a': {'name': 'a', 'method': 'dflash', 'seed': 0, 'drafter': {}, 'loss': {}},
  'b': {'name': 'b', 'method': 'dflash2', 'seed': 0, 'drafter': {}, 'loss': {}},
  'c': {'name': 'c', 'method': 'dspark', 'seed': 0, 'drafter': {}, 'loss': {}},
}
DATA = types.SimpleNamespace(hash='abc')


def config(names='ab', **changed):
  runs = tuple(ConfigDict(RUNS[name]) for name in names)
  c = dict(
    name='x', batch=2, temperatures=(0.0,), runs=runs, training={}, against=()
  )  # fmt: skip
  return ConfigDict(c | changed)


def row(run, dataset, emitted, rounds):
  return {
    'run': run, 'drafter': RUNS[run]['method'], 'dataset': dataset,
    'temperature': 0.0, 'emitted_by_prompt': emitted,
    'rounds_by_prompt': rounds,
    'tokens_per_round': sum(emitted) / sum(rounds),
  }  # fmt: skip


@pytest.fixture
def path(tmp_path):
  """A study of run a."""
  rows, settings = study.resumed(config('a'), DATA, tmp_path / 'x.json')
  assert rows == []
  rows = [row('a', 'one', [8, 8], [4, 4])]
  result = report.results.build(
    'study', 'measured', rows, config=settings, started=report.results.now()
  )
  return report.results.write(result, 'x', root=tmp_path)


def test_runs_of_the_same_settings_are_kept(path):
  rows, settings = study.resumed(config('ab'), DATA, path)
  assert [x['run'] for x in rows] == ['a'] and set(settings['runs']) == {*'ab'}
  rows, settings = study.resumed(config('b'), DATA, path)
  assert [x['run'] for x in rows] == ['a'] and set(settings['runs']) == {*'ab'}


def test_processes_add_to_one_file(path):
  """A run is kept beside those that came meanwhile; made twice, once."""
  for emitted in ([6, 6], [8, 8]):
    with study.alone(path.parent):
      new = [row('b', 'one', emitted, [2, 2])]
      c = config('b', against=('a',))
      study.keep(c, DATA, path, new, report.results.now())
  there = report.results.load(path)
  with study.alone(path.parent):
    c = config('b', against=('a',))
    study.keep(c, DATA, path, [], report.results.now())
  assert report.results.load(path) == there
  rows = there['metrics']
  assert [(x['run'], x.get('ratio')) for x in rows] == [
    ('a', None), ('b', None), ('a', 1), ('b', 2)
  ]  # fmt: skip


def test_runs_of_other_settings_are_refused(path, refused):
  with refused(f'batch = 3, but {path} was begun with 2; use that, or ...'):
    study.resumed(config(batch=3), DATA, path)
  with refused('data_hash = ...'):
    study.resumed(config(), types.SimpleNamespace(hash='other'), path)
  runs = (ConfigDict(RUNS['a'] | {'seed': 1}),)
  with refused('runs.a.seed = 1, but ...'):
    study.resumed(config(runs=runs), DATA, path)


def test_means_and_ratios():
  """The mean over sets, each pooled over its prompts."""
  rows = [
    row('a', 'one', [4, 4], [4, 4]), row('a', 'two', [9, 9], [3, 3]),
    row('b', 'one', [8, 8], [4, 4]), row('b', 'two', [18, 18], [3, 3]),
  ]  # fmt: skip
  found = {x['run']: x for x in study.compared(rows, 'a', 0.0)}
  assert found['a']['tokens_per_round'] == 2 and found['a']['ratio'] == 1
  assert found['b']['tokens_per_round'] == 4 and found['b']['ratio'] == 2
  # Both sides of a prompt are drawn together, and here all prompts agree.
  assert found['b']['ratio_low'] == found['b']['ratio_high'] == 2


def test_runs_made_meanwhile_are_not_made_again(path):
  """By this process or another one, whatever came between."""
  c = config('cab')
  made = []
  for run in study.missing(c, DATA, path):
    made.append(run.name)
    with study.alone(path.parent):
      for name in ('c', 'b'):
        new = [row(name, 'one', [6, 6], [2, 2])]
        study.keep(c, DATA, path, new, report.results.now())
  assert made == ['c']


def test_a_file_of_another_experiment_is_refused(path, refused):
  result = report.results.load(path) | {'experiment': 'decode'}
  result['config'] = {'batch': 2}
  other = report.results.write(result, 'x', root=path.parents[1])
  with refused(f'{other}: a result of decode, expected one of study; ...'):
    study.resumed(config(), DATA, other)
  result = report.results.load(path)
  del result['metrics'][0]['run']
  report.results.write(result, 'x', root=path.parents[1])
  with refused(f'{path}: does not say of which run ...'):
    study.resumed(config(), DATA, path)


def test_a_ratio_of_single_prompts_has_no_interval(capsys):
  rows = [row('a', 'one', [4], [4]), row('b', 'one', [8], [4])]
  rows += study.compared(rows, 'a', 0.0)
  study.show(rows)
  last = capsys.readouterr().out.split('/ a')[1]
  assert '2.000\n' in last and '2.000 [' not in last


def test_a_set_may_not_be_called_like_the_mean(refused):
  sets = [PromptSet('mean', (('Hi.',),))]
  with refused("prompts: a set is called 'mean', like that over all"):
    study.check(config(training={'seed': 0}), None, DATA, sets)


def test_settings_that_would_do_nothing(refused):
  with refused(
    'training.seed = 5, expected 0: each of the runs has its own ...'
  ):
    study.check(config(training={'seed': 5}), None, DATA, [])
  with refused('runs is empty, expected at least one'):
    study.check(config(''), None, DATA, [])
