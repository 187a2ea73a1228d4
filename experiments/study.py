"""Trains several drafters alike and compares their tokens a round.

Several processes, on one device or on many, may make one study: each is given
some of its runs, and they write to one file in turn.
"""

import contextlib
import gc
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np

from experiments import common
from spinejax import report
from spinejax.decode import acceptance
from spinejax.errors import InputError
from spinejax.report import stats
from spinejax.target.loading import load_target
from spinejax.train import evaluate, loop, setup
from spinejax.train.flops import flops_per_step
from spinejax.train.input import make_input
from spinejax.train.shards import open_data
from spinejax.train.step import Task, TrainConfig

# Of a config, what may differ when a study is taken up again.
_FREE = (
  'name', 'results', 'against', 'log', 'evaluated', 'runs', 'target', 'data',
)  # fmt: skip
# The data set of rows on all sets.
MEAN = 'mean'


def check(config, target, data, sets) -> None:
  """Refuses runs that could not be made, before the first is."""
  common.distinct('runs', [run.name for run in config.runs])
  if not config.runs:
    raise InputError('runs is empty, expected at least one')
  if config.training.seed:
    raise InputError(
      f'training.seed = {config.training.seed}, expected 0: each of the runs '
      'has its own seed'
    )
  if MEAN in [one.name for one in sets]:
    raise InputError(f'prompts: a set is called {MEAN!r}, like that over all')
  for run in config.runs:
    common.file_name('runs.name', run.name)
    task_of(config, target, run)
  if config.evaluated < 1 or not config.temperatures:
    raise InputError(
      'evaluated and temperatures, expected at least one of each'
    )
  acceptance.check(
    target, sets, temperatures=config.temperatures, batch=config.evaluated,
    max_new_tokens=config.max_new_tokens,
  )  # fmt: skip
  setup.check_batch(
    target, TrainConfig(**config.training), data, batch=config.batch,
    lengths=(config.length,),
  )  # fmt: skip


def task_of(config, target, run) -> tuple[TrainConfig, Task]:
  """How a run is trained."""
  train = TrainConfig(**config.training.to_dict() | {'seed': run.seed})
  sizes = config.drafter.to_dict() | run.drafter.to_dict()
  loss = run.loss.to_dict()
  return train, setup.make_task(
    target, run.method, train, drafter=sizes, loss=loss
  )


def trained(config, target, data, run) -> tuple:
  """A drafter that was trained, and what its training took."""
  train, task = task_of(config, target, run)
  begun = setup.start(target, task)
  feed = make_input(
    data, batch=config.batch, length=config.length, seed=train.seed
  )
  told = {}

  def log(step, scalars):
    told.update({k: float(v) for k, v in scalars.items() if not np.ndim(v)})
    print(
      f'{run.name}: step {step}, loss {told["loss"]:.3f}, '
      f'{told.get("step_ms", 0):.1f} ms a step', file=sys.stderr,
    )  # fmt: skip

  state = loop.run(
    task, train, begun.frozen, begun.state, feed,
    every=loop.Every(log=config.log), log=log,
  )  # fmt: skip
  weights = sum(x.size for x in jax.tree.leaves(state.weights))
  row = {
    'run': run.name, 'drafter': run.method, 'seed': run.seed,
    'steps': train.steps, 'batch': config.batch, 'weights': weights,
    'training_tokens': round(train.steps * config.batch * data.length_N.mean()),
    'flops_per_step': flops_per_step(
      task, state, config.batch, config.length
    ),
    'loss': told['loss'], 'ce': told['ce'],
  }  # fmt: skip
  return evaluate.drafter_of(task, begun.frozen, state), row


def compared(rows: list[dict], against: str, temperature: float) -> list[dict]:
  """Rows on the mean over the sets: each run's, and its ratio to one run's."""
  runs: dict[str, list] = {}
  for row in rows:
    if row.get('temperature') == temperature and 'rounds_by_prompt' in row:
      runs.setdefault(row['run'], []).append(row)

  def pairs(name):
    return [(r['emitted_by_prompt'], r['rounds_by_prompt']) for r in runs[name]]

  found = []
  for name, sets in runs.items():
    ratio = stats.mean_ratio(pairs(name), pairs(against))
    mean = sum(row['tokens_per_round'] for row in sets) / len(sets)
    found.append({
      'run': name, 'drafter': sets[0]['drafter'], 'dataset': MEAN,
      'temperature': temperature, 'tokens_per_round': mean,
      'against': against, 'ratio': ratio.value,
      'ratio_low': ratio.low, 'ratio_high': ratio.high,
    })  # fmt: skip
  return found


def show(rows: list[dict]) -> None:
  """Tokens a round by set, a line a run; and the ratios of the means."""
  lines, ratios = {}, {}
  for row in rows:
    if 'tokens_per_round' not in row:
      continue
    names = {'run': row['run'], 'T': f'{row["temperature"]:g}'}
    key = tuple(names.values())
    line = lines.setdefault(key, dict(names))
    line[row['dataset']] = f'{row["tokens_per_round"]:.2f}'
    if row['dataset'] == MEAN:
      ratio = f'{row["ratio"]:.3f}'
      if row['ratio_low'] is not None:  # as of a set of one prompt
        ratio += f' [{row["ratio_low"]:.3f}, {row["ratio_high"]:.3f}]'
      ratios.setdefault(key, dict(names))[f'/ {row["against"]}'] = ratio
  for table in (lines, ratios):
    columns = dict.fromkeys(key for line in table.values() for key in line)
    if table:
      report.table.print_columns(
        [{key: x.get(key, '-') for key in columns} for x in table.values()],
        names=1,
      )
  print(
    'tokens a round, greedy unless T says otherwise; below, mean over the sets '
    'over\nthat of another run, [95 % interval, paired bootstrap over prompts]'
  )


def draw(result: dict, path: pathlib.Path) -> None:
  """The first temperature's means, over that of the first run compared with."""
  config, points = result['config'], {}
  means = [row for row in result['metrics'] if row.get('dataset') == MEAN]
  first = means[0]['against'] if means else None
  drawn = config['temperatures'][0], first
  for row in means:
    if (row['temperature'], row['against']) == drawn:
      points[row['run']] = row['ratio'], row['ratio_low'], row['ratio_high']
  if not points:
    return
  target = next(row['target'] for row in result['metrics'] if 'target' in row)
  figure = report.figures.ratios(
    points, title=f'{target}, {config["training"]["steps"]} steps',
    label='measured', unit=f'tokens a round, mean over the sets, / {first}',
  )  # fmt: skip
  report.figures.save(figure, path)


def resumed(config, data, path: pathlib.Path) -> tuple[list[dict], dict]:
  """Rows of the runs that are there already, and the settings of all runs.

  Raises:
    InputError: they were made with other settings, so could not be compared.
  """
  settings = {k: v for k, v in config.to_dict().items() if k not in _FREE}
  settings['data_hash'] = data.hash
  runs = {run.name: run.to_dict() for run in config.runs}
  settings = report.results.portable(settings | {'runs': runs})
  if not path.exists():
    return [], settings
  result = report.results.load(path)
  before = {'runs': {}} | result['config']
  runs = settings['runs']
  if result['experiment'] != 'study':
    raise InputError(
      f'{path}: a result of {result["experiment"]}, expected one of study; '
      'use another name'
    )
  rows = result['metrics']
  if not all('run' in row and row['run'] in before['runs'] for row in rows):
    raise InputError(f'{path}: does not say of which run a row is')
  both = before['runs'].keys() & runs.keys()
  loop.refuse_changes(
    before | {'runs': {name: before['runs'][name] for name in both}},
    settings | {'runs': {name: runs[name] for name in both}},
    f'{path} was begun',
  )
  rows = [row for row in rows if 'against' not in row]
  return rows, settings | {'runs': before['runs'] | runs}


def missing(config, data, path: pathlib.Path) -> Iterator:
  """Runs that are not in the file, as it is when the turn of each comes."""
  for run in config.runs:
    rows, _ = resumed(config, data, path)
    if any(row['run'] == run.name for row in rows):
      print(f'{run.name}: is there already', file=sys.stderr)
    else:
      yield run


def evaluated(config, target, sets, draft, run) -> list[dict]:
  """Rows of a trained drafter, by set and temperature."""
  began, rows = time.perf_counter(), []
  draft = evaluate.cast(target, draft)
  for temperature in config.temperatures:
    rows += acceptance.measure(
      target, draft, sets, temperature=temperature, batch=config.evaluated,
      max_new_tokens=config.max_new_tokens, seed=run.seed,
    )  # fmt: skip
  took = time.perf_counter() - began
  print(f'{run.name}: evaluated in {took:.0f} s', file=sys.stderr)
  return [{'run': run.name} | row for row in rows]


@contextlib.contextmanager
def alone(folder: pathlib.Path):
  """Waits until no other process is here with the same folder."""
  handle = common.hold(folder, wait=True)
  try:
    yield
  finally:
    os.close(handle)


def keep(config, data, path: pathlib.Path, new: list[dict], started) -> None:
  """Adds the rows of a run to the file, and makes the means over the sets anew.

  Without a run the file stays the record of where it was measured.
  """
  rows, settings = resumed(config, data, path)
  made = {row['run'] for row in new}
  rows = [row for row in rows if row['run'] not in made] + new
  there = {row['run'] for row in rows}
  means = [
    mean
    for against in config.against if against in there
    for temperature in config.temperatures
    for mean in compared(rows, against, temperature)
  ]  # fmt: skip
  if new:
    result = report.results.build(
      'study', 'measured', rows + means, config=settings, started=started
    )
  else:
    result = report.results.load(path) | {'metrics': rows + means}
  report.results.write(result, path.stem, root=path.parents[1])


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'batch', 'length', 'limit', 'max_new_tokens', 'log')
  dtype = common.dtype(config.dtype)
  folder = common.results(config, 'study')
  sets = common.prompt_sets(config)
  target = load_target(config.target, dtype)
  data = open_data(config.data, target=target, longest=config.length)
  check(config, target, data, sets)
  path = folder / f'{config.name}.json'
  for run in missing(config, data, path):
    draft, row = trained(config, target, data, run)
    rows = [row, *evaluated(config, target, sets, draft, run)]
    del draft
    gc.collect()
    with alone(folder):
      keep(config, data, path, rows, started)
  with alone(folder):
    keep(config, data, path, [], started)
  result = report.results.load(path)
  for against in config.against:
    if all(row['run'] != against for row in result['metrics']):
      print(f'no run {against!r} to compare with yet', file=sys.stderr)
  draw(result, path.with_suffix('.png'))
  with alone(folder):
    report.runs.log(
      common.logs(config, 'study'), config=config.to_dict(),
      points=report.runs.points_of(result['metrics']),
    )  # fmt: skip
  show(result['metrics'])
  print(path)


if __name__ == '__main__':
  common.run(main)
