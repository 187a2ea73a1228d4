"""Serves many requests with several drafters; compares speed and latency."""

import dataclasses
import gc
import itertools
import pathlib
import statistics
import sys

import numpy as np

from experiments import common
from experiments import decode as decoding
from experiments.random_weights import DRAFTERS
from experiments.workload import Work, prepare, requests_of, resumed
from spinejax import report
from spinejax.decode import forced, load
from spinejax.decode.batch import Settings
from spinejax.decode.batch import check as check_settings
from spinejax.decode.engine import Engine
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.request import check_context
from spinejax.decode.schedule import PLAIN
from spinejax.decode.scheduler import Scheduling
from spinejax.decode.ticket import Request
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.target.loading import Target
from spinejax.verify.sampling import check_sampling

# Throughput of DSpine over that of these, arXiv 2609.36173, Qwen3-8B.
PAPER = {'dflash2': '+11.1 %', 'dflash': '+23.3 %'}
# Columns of milliseconds.
_TIMES = {
  'first': 'ttft_ms_p50', '95 %': 'ttft_ms_p95',
  'next': 'token_ms_p50', '99 %': 'token_ms_p99',
}  # fmt: skip
_KINDS = 'plain', 'packed', 'padded'  # of rounds; see `Counters`
_PREFIX_NEW = 16  # tokens of answers that are compared
_KEYS = (
  'dataset', 'load', 'concurrency', 'rate', 'repeat', 'drafter', 'scheduled'
)  # fmt: skip


def check(config) -> None:
  """Refuses what can be seen before anything is loaded."""
  common.file_name('name', config.name)
  common.positive(
    config, 'max_new_tokens', 'prompt_tokens', 'per_client', 'requests',
    'arrivals', 'repeats', 'slots_per_reader',
  )  # fmt: skip
  decoding.check_drafters(config)
  if config.synthetic:
    for name in config.drafters:
      if name not in DRAFTERS:
        raise InputError(
          f'drafters has {name!r}, expected some of {", ".join(DRAFTERS)}'
        )
    if not config.acceptance:
      raise InputError('acceptance is empty, expected at least one')
  if not config.concurrencies:
    raise InputError('concurrencies is empty, expected at least one')
  for value in config.concurrencies:
    if type(value) is not int or value < 1:
      raise InputError(f'concurrencies has {value!r}, expected at least 1')
  for value in config.rates:
    if not value > 0:
      raise InputError(f'rates has {value!r}, expected above 0')
  common.positive(config.prefix, 'tokens')
  if not 0 < config.prefix.cached < 1:
    raise InputError(
      f'prefix.cached = {config.prefix.cached}, expected between 0 and 1'
    )
  check_sampling(config.temperature, config.top_k, config.top_p)
  settings_of(config, 1, 2**20)


def settings_of(config, slots: int, capacity: int, **more) -> Settings:
  """The engine's settings; the queue holds whoever comes."""
  own = config.engine.to_dict() | dict(widths=()) | more
  return Settings(
    slots=slots, capacity=capacity, queue=2**20,
    readers=max(slots // config.slots_per_reader, 1), **own,
  )  # fmt: skip


def engine_of(
  config, target: Target, model: DraftModel, settings: Settings,
  survival: np.ndarray | None, scheduled: bool = False,
) -> Engine:  # fmt: skip
  """An engine that has compiled all it needs, and measured it."""
  more = {'scheduling': Scheduling()} if scheduled else {}
  if config.synthetic:
    more |= dict(stop_ids=(), step=forced.step, extra=survival)
  engine = Engine(target, model, settings, **more)
  engine.warm_up(sampled=config.temperature > 0)
  return engine


def check_sizes(config, target, drafters, longest: int, capacity: int) -> None:
  """Refuses loads that the target's context or the memory is too small for."""
  check_context(target, None, longest, config.max_new_tokens)
  if config.prefix.repeats:
    check_context(target, None, config.prefix.tokens, _PREFIX_NEW)
  most = settings_of(config, max(config.concurrencies), capacity)
  for model in drafters.values():
    check_settings(target, model, most)


def measure(config, target, model, work, survival, cell, capacity) -> dict:
  """The metric row of a drafter at one load."""
  closed = cell['load'] == 'closed'
  slots = cell['concurrency'] if closed else max(config.concurrencies)
  settings = settings_of(config, slots, capacity)
  if not closed:
    settings = dataclasses.replace(settings, widths=config.engine.widths)
  scheduled = cell.get('scheduled', False)
  engine = engine_of(config, target, model, settings, survival, scheduled)
  # What is used for the first time is slower.
  load.closed_loop(engine, requests_of(config, work.prompts, slots, 2), slots)
  engine.counters.rounds.clear()
  if closed:
    count = max(config.per_client * slots, config.requests)
    asked = requests_of(config, work.prompts, count)
    done = load.closed_loop(engine, asked, slots)
  else:
    asked = requests_of(config, work.prompts, config.arrivals)
    times = load.poisson(len(asked), cell['rate'], config.seed)
    done = load.open_loop(engine, asked, times)
  hist = sum(ticket.accepted_hist for ticket in done.tickets)
  tau = report.tokens_per_round(
    [len(ticket.tokens) for ticket in done.tickets],
    [ticket.rounds for ticket in done.tickets], seed=config.seed,
  )  # fmt: skip
  row = load.measured(done) | {
    'capacity': capacity, 'rows': model.drafter.slots + 1,
    'tokens_per_round': tau.value, 'tokens_per_round_low': tau.low,
    'tokens_per_round_high': tau.high,
  }  # fmt: skip
  if len(hist) > 1:
    row['acceptance_by_position'] = report.acceptance(hist).by_position
  if scheduled:
    table = engine.scheduler.costs[slots, config.temperature == 0]
    rounds = engine.counters.rounds
    row |= {f'{kind}_rounds': rounds[kind] for kind in _KINDS} | {
      'budgets': [PLAIN, *table.drafted],
      'budget_ms': [table.plain, *table.drafted.values()],
    }
  return row


def measure_prefix(config, target, model, survival) -> dict:
  """The row on time to the first token, with and without the prefix cache."""
  tokens, new = config.prefix.tokens, _PREFIX_NEW
  rng = np.random.default_rng(config.seed)
  capacity = capacity_bucket(tokens + new + model.drafter.slots + 1)
  block = config.engine.chunks[-1]
  engines = [
    engine_of(config, target, model,
      settings_of(config, 1, capacity, prefix_blocks=blocks), survival)
    for blocks in (0, 2 * -(-tokens // block))
  ]  # fmt: skip
  shared = round(config.prefix.cached * tokens)
  took, same, cached = ([], []), 0, 0
  for _ in range(config.prefix.repeats + 1):  # the first one warms up
    first, second = rng.integers(0, target.cfg.vocab, (2, tokens))
    second[:shared] = first[:shared]
    load.first_token_ms(engines[1], Request(first.tolist(), 1))
    done = [
      load.first_token_ms(e, Request(second.tolist(), new)) for e in engines
    ]
    for times, (ms, _) in zip(took, done, strict=True):
      times.append(ms)
    same += done[0][1].tokens == done[1][1].tokens
    cached = done[1][1].cached
  without, within = (statistics.median(times[1:]) for times in took)
  return {
    'context': tokens, 'cached_tokens': cached, 'ttft_ms': without,
    'ttft_ms_cached': within, 'ttft_ratio': without / within,
    'exact': same, 'total': config.prefix.repeats + 1,
  }  # fmt: skip


def cells_of(config, drafters, works: list[Work]) -> list[dict]:
  """Everything to measure, in order; drafters in turn, the last one at its end
  with a scheduler, too."""
  loads = [{'load': 'closed', 'concurrency': n} for n in config.concurrencies]
  loads += [{'load': 'open', 'rate': float(r)} for r in config.rates]
  how = [{'drafter': drafter} for drafter in drafters]
  if config.schedule:
    how.append({'drafter': list(drafters)[-1], 'scheduled': True})
  return [
    {'dataset': work.name, **level, 'repeat': repeat, **each}
    for work, level, repeat, each in itertools.product(
      works, loads, range(config.repeats), how
    )
  ]


def name_of(row: dict) -> str:
  """The drafter, as tables and figures call it."""
  return row['drafter'] + (', scheduled' if row.get('scheduled') else '')


def key_of(row: dict) -> tuple:
  """What tells the rows of a result apart."""
  return tuple(row.get(key) for key in _KEYS)


def summary(rows: list[dict]) -> list[dict]:
  """Medians over the repeats, and ratios to plain decoding and to others."""
  groups: dict[tuple, list[dict]] = {}
  for row in rows:
    if row['load'] in ('closed', 'open'):
      place = tuple(row.get(key) for key in _KEYS if key != 'repeat')
      groups.setdefault(place, []).append(row)
  means = {}
  for place, some in groups.items():
    means[place] = {
      key: statistics.median(row[key] for row in some)
      if isinstance(value, float) and key != 'rate' else value
      for key, value in some[0].items() if key != 'repeat'
    } | {'repeats': len(some)}  # fmt: skip
  for (*level, _, _), row in means.items():
    for other in PAPER | {'plain': ''}:
      base = means.get((*level, other, None))
      if base is not None and other != row['drafter']:
        ratio = row['tokens_per_s'] / base['tokens_per_s']
        row[f'speedup_vs_{other}'] = ratio
  return list(means.values())


def show(table: list[dict], rows: list[dict]) -> None:
  """Prints the medians, the prefix cache, and gains beside the paper's."""
  lines = []
  for row in table:
    at = row.get('concurrency') or f'{row["rate"]:g}/s'
    line = {
      'dataset': row['dataset'], 'load': f'{row["load"]} {at}',
      'drafter': name_of(row), 't/round': f'{row["tokens_per_round"]:.2f}',
      'tok/s': f'{row["tokens_per_s"]:.0f}',
      'each': f'{row["request_tokens_per_s"]:.0f}',
    }  # fmt: skip
    for column, key in _TIMES.items():
      value = row.get(key)
      line[column] = '-' if value is None else f'{value:.1f}'
    gain = row.get('speedup_vs_plain')
    lines.append(line | {'x plain': '-' if gain is None else f'{gain:.2f}'})
  report.table.print_columns(lines, names=3)
  print(
    't/round: tokens a round; tok/s: all clients; each: a request, median; '
    'first:\nms from asking to the first token, median and 95 %; next: ms '
    'between tokens,\nmedian and 99 %'
  )
  for row in rows:
    if row['load'] == 'prefix':
      print(
        f'first token of {row["context"]} tokens, {row["drafter"]}: '
        f'{row["ttft_ms"]:.1f} ms; with {row["cached_tokens"]} of them cached '
        f'{row["ttft_ms_cached"]:.1f} ms, {row["ttft_ratio"]:.2f} x; outputs '
        f'equal in {row["exact"]} of {row["total"]}'
      )
  for dataset, (other, paper) in itertools.product(
    dict.fromkeys(row['dataset'] for row in table), PAPER.items()
  ):
    gains = {
      row['concurrency']: row[f'speedup_vs_{other}'] for row in table
      if row['dataset'] == dataset and name_of(row) == 'dspine'
      and row.get('concurrency', 0) > 1 and f'speedup_vs_{other}' in row
    }  # fmt: skip
    if gains:
      each = ', '.join(f'{n}: {g - 1:+.1%}' for n, g in gains.items())
      mean = statistics.mean(gains.values()) - 1
      print(
        f'{dataset}: dspine over {other} at {each}; mean {mean:+.1%} (paper, '
        f'Qwen3-8B, 2-32: {paper})'
      )


def draw(table: list[dict], title: str, label: str):
  """Tokens a second by concurrency."""
  several = len({row['dataset'] for row in table}) > 1
  curves: dict[str, dict] = {}
  for row in table:
    if row['load'] == 'closed':
      name = name_of(row) + (f', {row["dataset"]}' if several else '')
      curves.setdefault(name, {})[row['concurrency']] = row['tokens_per_s']
  return report.figures.by_load(
    curves, title=title, label=label, load='requests at a time',
    unit='tokens a second',
  )  # fmt: skip


def log(folder: pathlib.Path, config, table: list[dict], figure) -> None:
  """TensorBoard: a curve over the load for each number."""
  points: dict[str, list] = {}
  for row in table:
    step = row.get('concurrency') or round(1000 * row['rate'])
    points.setdefault(name_of(row), []).append((step, {
      f'{row["dataset"]}_{row["load"]}/{key}': row[key]
      for key in row if '_ms_p' in key or key.startswith(('tokens', 'speed'))
      if row[key] is not None
    }))  # fmt: skip
  report.runs.log(
    folder, config=config.to_dict(), points=points,
    figures={'tokens_per_s': figure},
  )  # fmt: skip


def main(config):
  started = report.results.now()
  check(config)
  label = 'synthetic' if config.synthetic else 'measured'
  folder = common.results(config, 'throughput')
  logs = common.logs(config, 'throughput')
  path = folder / f'{config.name}.json'
  rows = resumed(config, path)
  target, drafters, works = prepare(config)
  longest = max(len(prompt) for work in works for prompt in work.prompts)
  capacity = capacity_bucket(longest + config.max_new_tokens + config.block)
  check_sizes(config, target, drafters, longest, capacity)
  cells = cells_of(config, drafters, works)
  if config.prefix.repeats:
    cells.append({'load': 'prefix', 'drafter': list(drafters)[-1]})
  by_name = {work.name: work for work in works}
  there = set(map(key_of, rows))
  for number, cell in enumerate(cells):
    if key_of(cell) in there:
      continue
    print(f'{number + 1} of {len(cells)}: {cell}', file=sys.stderr)
    model = drafters[cell['drafter']]
    work = by_name.get(cell.get('dataset'), works[0])
    survival = work.survival and work.survival[cell['drafter']]
    if cell['load'] == 'prefix':
      row = measure_prefix(config, target, model, survival)
    else:
      row = measure(config, target, model, work, survival, cell, capacity)
    rows.append({
      'target': target.name, 'dtype': config.dtype, 'seed': config.seed,
      'temperature': config.temperature, **cell, **row,
    })  # fmt: skip
    gc.collect()  # engines are large
    table = summary(rows)
    result = report.results.build(
      'throughput', label, rows + table, config=config.to_dict(),
      started=started,
    )  # fmt: skip
    report.results.write(result, config.name, root=config.results)
  table = summary(rows)
  print(f'{label} on {report.results.device()[0]}, {target.name}\n')
  show(table, rows)
  figure = draw(table, f'{target.name}, {config.dtype}', label)
  report.figures.save(figure, path.with_suffix('.png'))
  log(logs, config, table, figure)
  print(f'TensorBoard: tensorboard --logdir {config.results}')
  print(path)


if __name__ == '__main__':
  common.run(main)
