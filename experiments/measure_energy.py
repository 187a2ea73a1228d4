"""Measures the energy of requests, model by model, within a budget of time."""

import csv
import dataclasses
import io
import pathlib
import random
import sys
import time

import jax
import numpy as np

from experiments import common
from experiments.metering import Baseline, resumed
from experiments.random_weights import random_target
from spinejax import report
from spinejax.energy import meters, windows, workload
from spinejax.energy.cells import architecture
from spinejax.energy.compose import requests
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.loading import target_config
from spinejax.target.memory import available_bytes

# Of a config, what may differ when a run is taken up again.
_FREE = ('name', 'results', 'budget_minutes', 'meter', 'repeats', 'families',
         'whole', 'seed')  # fmt: skip
_APART = 0.05


@dataclasses.dataclass(frozen=True)
class Model:
  """What is measured of one shape."""

  name: str
  family: str
  cfg: TargetConfig
  whole: tuple[tuple[int, int], ...]  # inputs and outputs


def models_of(config) -> list[Model]:
  """All models that the config names; refuses what cannot be run."""
  common.file_name('name', config.name)
  common.dtype(config.dtype)
  common.positive(config, 'max_batch', 'prompt_tokens', 'rounds', 'repeats')
  for field in (
    'seconds',
    'settle',
    'idle_seconds',
    'memory',
    'budget_minutes',
  ):
    if not config[field] > 0:
      raise InputError(f'{field} = {config[field]}, expected more than 0')
  for field in ('capacities', 'prompts', 'contexts', 'lengths'):
    if not config[field]:
      raise InputError(f'{field} is empty, expected at least one')
  if len(config.contexts) != len(config.capacities):
    raise InputError(
      f'contexts are of {len(config.contexts)} caches, expected those of '
      f'{len(config.capacities)} capacities'
    )
  capacity_of(config, 2 * max(config.lengths))  # or it is refused
  models = []
  for family, names in config.families.items():
    for source in names:
      name = pathlib.Path(source).name
      whole = tuple(tuple(w[1:]) for w in config.whole if w[0] == name)
      models.append(Model(name, family, target_config(source), whole))
  names = [model.name for model in models]
  for name in names:
    if names.count(name) > 1:
      raise InputError(f'families: two models are called {name!r}')
  for name, prompt, output in config.whole:
    if name not in names or prompt not in config.prompts:
      raise InputError(
        f'whole has {name} with a prompt of {prompt}, expected a model of '
        'families and a length of prompts'
      )
    if capacity_of(config, prompt) != capacity_of(config, prompt + output):
      raise InputError(
        f'whole: {prompt} + {output} tokens need another capacity than prompts '
        f'of {prompt}'
      )
  return models


def capacity_of(config, tokens: int) -> int:
  """The capacity that requests of so many tokens get."""
  tiers = [workload.Tier(1, capacity) for capacity in config.capacities]
  return workload.tier_of(tiers, tokens).capacity


def pieces_of(config, model: Model, rows: list[dict]) -> list[workload.Piece]:
  """The steady pieces of one model, in the batches that memory allows.

  A run that is taken up again keeps its batches.
  """
  memory = available_bytes()
  if memory is None:
    raise InputError('the free memory of the device cannot be told')
  before = {
    row['longest']: row['batch']
    for row in rows
    if row['target'] == model.name and row['kind'] == 'decode'
  }
  tiers = []
  for capacity in config.capacities:
    most = before.get(workload.Tier(1, capacity).longest, config.max_batch)
    tiers.append(
      workload.tier(
        model.cfg, capacity, most, config.memory * memory, config.dtype
      )
    )
  return workload.plan(
    tiers, prompts=config.prompts, prompt_tokens=config.prompt_tokens,
    contexts=config.contexts, rounds=config.rounds,
  )  # fmt: skip


def measure(config, meter, model: Model, rows: list[dict]) -> None:
  """Adds what is missing of a model to the rows."""
  params = random_target(model.cfg, common.dtype(config.dtype))
  pieces = pieces_of(config, model, rows)
  same = dict(target=model.name, family=model.family, dtype=config.dtype)
  there = pieces_in([row for row in rows if row['target'] == model.name])
  missing = [
    (repeat, piece)
    for repeat in range(config.repeats)
    for piece in workload.shuffled(pieces, f'{config.seed} {repeat}')
    if len(there.get(piece.key, ())) <= repeat
  ]
  work = workload.Workload(model.cfg, params, pieces)

  def idle(when):
    window = windows.idle(config.idle_seconds, config.settle)
    watts = windows.idle_watts(meter, window)
    rows.append(same | dict(kind='idle', when=when, watts=watts))

  idle('before')
  for repeat, piece in missing:
    work.run(piece)  # makes the cache, outside the window
    window = windows.steady(
      lambda piece=piece: work.run(piece), config.seconds, config.settle
    )
    rows.append(same | row_of(piece, windows.read(meter, window)) | dict(
      repeat=repeat, calls=window.calls, **meter.state(),
    ))  # fmt: skip
  for lengths in model.whole:
    if not any(is_whole(row, model, *lengths) for row in rows):
      rows.append(same | whole(config, meter, work, pieces, *lengths))
  work.leave()
  idle('after')


def row_of(piece: workload.Piece, reading: windows.Reading) -> dict:
  """What a piece took, as a metric row; of one call."""
  return dict(
    kind=piece.kind, longest=piece.tier.longest, batch=piece.batch,
    tokens=piece.tokens, context=piece.context, rounds=piece.rounds,
    joules=reading.joules, seconds=reading.seconds, watts=reading.watts,
    joules_by_power=reading.integrated,
  )  # fmt: skip


def complete(config, model: Model, rows: list[dict]) -> bool:
  """Whether nothing of a model is missing."""
  own = [row for row in rows if row['target'] == model.name]
  repeats = [len(joules) for joules in pieces_in(own).values()]
  return (
    len(repeats) == number(config)
    and min(repeats) >= config.repeats
    and all(
      any(is_whole(row, model, *lengths) for row in own)
      for lengths in model.whole
    )
  )


def is_whole(row: dict, model: Model, prompt: int, output: int) -> bool:
  """Whether the row is that request of that model, run whole."""
  return row['kind'] == 'whole' and (
    row['target'], row['input'], row['output']
  ) == (model.name, prompt, output)  # fmt: skip


def whole(config, meter, work, pieces, prompt: int, output: int) -> dict:
  """Runs a full batch of requests from their first token to their last."""
  prefill = next(p for p in pieces if (p.kind, p.tokens) == ('prefill', prompt))
  decode = dataclasses.replace(
    next(p for p in pieces if (p.kind, p.tier) == ('decode', prefill.tier)),
    tokens=prompt,
  )  # fmt: skip
  work.run(decode)  # makes the cache
  window = windows.between(
    lambda: work.run_whole(prefill, decode, output),
    lambda: work.run(decode), config.seconds, config.settle,
  )  # fmt: skip
  reading, batch = windows.read(meter, window), prefill.tier.batch
  return dict(
    kind='whole', input=prompt, output=output, batch=batch,
    joules=reading.joules / batch, seconds=reading.seconds / batch,
    watts=reading.watts,
  )  # fmt: skip


def cells(config, models: list[Model], rows: list[dict]) -> list[dict]:
  """Requests of all lengths, of the models that are complete."""
  made = []
  for model in models:
    own = [row for row in rows if row['target'] == model.name]
    if len(pieces_in(own)) == number(config):
      same = dict(
        kind='cell', target=model.name, family=model.family, dtype=config.dtype
      )
      made += [
        same | row | architecture(model.cfg)
        for row in requests(own, config.lengths)
      ]
  return made


def number(config) -> int:
  """Pieces of each model."""
  return len(config.prompts) + sum(map(len, config.contexts))


def pieces_in(rows: list[dict]) -> dict[tuple, list[float]]:
  """Joules of each repeat, by piece."""
  found: dict[tuple, list[float]] = {}
  for row in rows:
    if 'tokens' in row:
      key = row['kind'], row['longest'], row['tokens']
      found.setdefault(key, []).append(row['joules'])
  return found


def write(config, started, models, rows) -> pathlib.Path:
  """All rows as a result file, and the requests as a CSV beside it."""
  table = cells(config, models, rows)
  result = report.results.build(
    'measure_energy', 'measured', rows + table, config=config.to_dict(),
    started=started,
  )  # fmt: skip
  path = report.results.write(result, config.name, root=config.results)
  if table:
    names = list(dict.fromkeys(key for row in table for key in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, ['model', *names, 'device'])
    writer.writeheader()
    same = dict(device=result['device_kind'])
    writer.writerows(row | same | dict(model=row['target']) for row in table)
    text = file.getvalue().encode()
    report.results.atomic_write(path.with_suffix('.csv'), text)
  return path


def show(config, models: list[Model], rows: list[dict]) -> None:
  """What there is of each model, repeats, and requests run whole."""
  table = cells(config, models, rows)
  lines = []
  for model in models:
    own = [row for row in rows if row['target'] == model.name]
    groups = pieces_in(own)
    spread = [np.ptp(x) / np.mean(x) for x in groups.values() if len(x) > 1]
    done = [row for row in table if row['target'] == model.name]
    errors = [abs(row['composed'] / row['joules'] - 1)
              for row in done if row['how'] == 'whole']  # fmt: skip
    joules = [row['joules'] for row in done]
    lines.append({
      'model': model.name, 'family': model.family, 'pieces': str(len(groups)),
      'requests': str(len(done)),
      'J a request': f'{min(joules):.3g} .. {max(joules):.3g}' if done else '-',
      'repeats apart': f'{max(spread):.1%}' if spread else '-',
      'whole apart': f'{max(errors):.1%}' if errors else '-',
    })  # fmt: skip
  report.table.print_columns(lines, names=2)
  print(
    'apart: the most that repeats of a piece differ (expected: 3 %), and that '
    f'composed\nrequests differ from those run whole (expected: {_APART:.0%})'
  )


def run(config, meter, models, rows, began, started):
  """Measures models in random order until the budget is spent.

  A model that fails does not keep the others from being measured.

  Returns:
    Names of those that are left, and what went wrong with others.
  """
  order = [model for model in models if not complete(config, model, rows)]
  random.Random(config.seed).shuffle(order)
  # Those of which there is least first.
  order.sort(key=lambda model: sum(r['target'] == model.name for r in rows))
  longest, left, failed = 0.0, [], []
  # The last seconds are the closing baseline's.
  end = began + 60 * config.budget_minutes
  end -= 2 * (config.seconds + config.settle)
  for model in order:
    since = time.monotonic()
    if longest and since + longest > end:
      left.append(model.name)
      continue
    print(f'{since - began:.0f} s: {model.name}', file=sys.stderr)
    try:
      measure(config, meter, model, rows)
    except (InputError, jax.errors.JaxRuntimeError) as error:
      failed.append(f'{model.name}: {" ".join(str(error).split())[:300]}')
      print(failed[-1], file=sys.stderr)
    finally:
      write(config, started, models, rows)
    longest = max(longest, time.monotonic() - since)
  return left, failed


def main(config):
  began, started = time.monotonic(), report.results.now()
  models = models_of(config)
  root = common.results(config, 'measure_energy')
  rows = resumed(config, root / f'{config.name}.json', _FREE)
  rows = [row for row in rows if row['kind'] != 'cell']
  with meters.open_meter(config.meter) as meter:
    print(f'joules by {meter.source}', file=sys.stderr)
    capacity, context = min(config.capacities), min(map(min, config.contexts))
    baseline = Baseline(config, meter, config.max_batch, capacity, context)
    baseline.measure(rows)
    left, failed = run(config, meter, models, rows, began, started)
    baseline.measure(rows)
  path = write(config, started, models, rows)
  print(f'measured on {report.results.device()[0]}, {meter.source}\n')
  show(config, models, rows)
  print(baseline.say())
  if left:
    print(f'left for the same command again: {", ".join(left)}')
  print(path)
  if failed:
    raise InputError(f'not measured: {"; ".join(failed)}')


if __name__ == '__main__':
  common.run(main)
