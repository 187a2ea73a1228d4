"""Times steps and rounds of any published shape with random weights."""

import collections
import dataclasses
import itertools
import pathlib
import statistics
import sys

from experiments import common
from experiments.random_weights import (
  DRAFTERS,
  random_drafter,
  random_target,
)
from spinejax import report
from spinejax.decode import timing
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.round import STAGES
from spinejax.decode.schedule import PLAIN
from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.loading import plain_model
from spinejax.drafters.shape import drafter_config
from spinejax.energy import cost
from spinejax.errors import InputError
from spinejax.report import profile
from spinejax.target.config import TargetConfig
from spinejax.target.loading import target_config
from spinejax.target.memory import available_bytes, memory_table

# Share of a round that verification takes, arXiv 2609.36173.
PAPER = '72-76 %'


@dataclasses.dataclass(frozen=True)
class Point:
  """What is timed together, on one target's cache."""

  target: str
  cfg: TargetConfig
  shape: DSpineConfig
  batch: int
  context: int
  capacity: int


def points_of(config) -> list[Point]:
  """All points that the config names, target by target; refuses bad ones."""
  common.file_name('name', config.name)
  common.positive(config, 'rounds', 'repeats')
  dtype = common.dtype(config.dtype)
  for field, least in (('batches', 1), ('contexts', 2), ('rows', 1)):
    for value in config[field]:
      if type(value) is not int or value < least:
        raise InputError(
          f'{field} has {value!r}, expected whole numbers >= {least}'
        )
  for share in config.packed:
    if not isinstance(share, float) or not 0 < share < 1:
      raise InputError(f'packed has {share!r}, expected shares in (0, 1)')
  for field in (
    'targets', 'batches', 'contexts', 'rows', 'packed', 'drafters'
  ):  # fmt: skip
    if not config[field] and field not in ('drafters', 'packed'):
      raise InputError(f'{field} is empty, expected at least one')
    names = [
      pathlib.Path(v).name if field == 'targets' else v for v in config[field]
    ]
    for name in names:
      if names.count(name) > 1:
        raise InputError(f'{field}: two are called {name!r}')
  for name in config.drafters:
    if name not in DRAFTERS:
      raise InputError(
        f'drafters has {name!r}, expected one of {", ".join(DRAFTERS)}'
      )
  have, points = available_bytes(), []
  for target in config.targets:
    cfg = target_config(target)
    shape = drafter_config(
      DSpineConfig, cfg, mask_id=0, causal=True, **config.drafter
    )
    widest = max(*config.rows, shape.block)
    most = dataclasses.replace(shape, block=widest)
    for batch, context in itertools.product(config.batches, config.contexts):
      least = context + config.rounds + widest
      capacity = config.capacity or capacity_bucket(least)
      if capacity < least:
        raise InputError(
          f'capacity = {capacity} is too small: context {context} needs {least}'
        )
      need = memory_table(cfg, most, batch, capacity, dtype)['total']
      if have is not None and need > have:
        raise InputError(
          f'{target}, batch {batch}, capacity {capacity}: about '
          f'{need / 2**30:.1f} GiB are needed, {have / 2**30:.1f} GiB are free'
        )
      points.append(
        Point(pathlib.Path(target).name, cfg, shape, batch, context, capacity)
      )
  return points


def measure(config, point: Point, params, drafters, rate, logs) -> list[dict]:
  """Metric rows of one point: whole rounds first, then their parts."""
  bench = timing.Bench(
    point.cfg, params, batch=point.batch, context=point.context,
    capacity=point.capacity, rounds=config.rounds,
  )  # fmt: skip
  padded = [plain_model(rows - 1) for rows in config.rows] + drafters
  profiled = drafters or padded[-1:]
  widest = padded[config.rows.index(max(config.rows))]
  runs = [(model, None) for model in padded]
  for model in (widest, *drafters):
    most = point.batch * (model.drafter.slots + 1)
    # A row for each request at least, however small the share.
    budgets = [max(point.batch, round(x * most)) for x in config.packed]
    runs += [(model, budget) for budget in budgets]
  runs += [(model, PLAIN) for model in drafters]
  programs = bench.compile(*zip(*runs, strict=True))
  # Beside the rounds, for a CPU's speed drifts.
  reads = timing.read_ms(params, config.repeats)
  times = bench.time(programs, config.repeats)
  reads += timing.read_ms(params, config.repeats)
  settings = dict(
    target=point.target, batch=point.batch, context=point.context,
    capacity=point.capacity, dtype=config.dtype, repeats=config.repeats,
    rounds=config.rounds,
  )  # fmt: skip
  table, parts = [], []
  for (model, budget), program, took in zip(runs, programs, times, strict=True):
    drafts = plain_model() if budget == PLAIN else model
    rows, sizes = drafts.drafter.slots + 1, (point.batch, point.context)
    need = cost.step(point.cfg, *sizes, rows, dtype=config.dtype) + cost.draft(
      drafts.drafter.cfg, drafts.params, point.cfg, *sizes, dtype=config.dtype
    )
    least_ms = 1e3 * need.bytes / rate
    row = settings | dict(
      drafter=model.drafter.name, rows=rows,
      time_ms=took.median, time_ms_low=took.low, time_ms_high=took.high,
      bandwidth_fraction=least_ms / took.median,
      weight_read_ms=statistics.median(reads),
    )  # fmt: skip
    if budget is not None:
      row['budget'] = budget
      same = times[runs.index((model, None))].median
      row['speedup_vs_padded'] = same / took.median
    if 1 in config.rows:
      row['plain_steps'] = took.median / times[config.rows.index(1)].median
    table.append(row)
    if budget is None and any(model is one for one in profiled):
      name = f'{row["drafter"]}_batch{point.batch}_context{point.context}'
      folder = logs / f'{point.target}_{name}'
      program_text = bench.trace(program, folder)
      try:
        busy = profile.breakdown(folder, program_text, STAGES)
      except ValueError as error:  # the times are worth keeping
        print(f'no breakdown: {error}', file=sys.stderr)
        continue
      row['busy_ms'] = sum(busy.values()) / config.rounds
      parts += parts_of(row, busy)
  return table + parts


def parts_of(row: dict, busy: dict[tuple[str, str], float]) -> list[dict]:
  """Rows of each stage of a round, and of each kind of operation in it.

  The shares are of the time in which the profiled device was busy; the
  milliseconds are that share of the round as it was timed without a profiler.
  """
  keys = ('target', 'batch', 'context', 'capacity', 'dtype', 'drafter', 'rows')
  same, total = {key: row[key] for key in keys}, sum(busy.values())
  parts = []
  for stage in (*STAGES, profile.OTHER):
    kinds = {k: ms for (of, k), ms in busy.items() if of == stage}
    for kind, ms in [(None, sum(kinds.values())), *sorted(kinds.items())]:
      part = same | dict(stage=stage, share=ms / total)
      part['time_ms'] = part['share'] * row['time_ms']
      parts.append(part if kind is None else part | dict(kind=kind))
  return parts


def show(table: list[dict]) -> None:
  """Prints the rounds, then the shares of stages and of kinds in them."""
  place = ('target', 'batch', 'context', 'drafter', 'rows')
  rounds, parts = [], {}
  for row in table:
    cells = tuple(str(row[key]) for key in place)
    if 'budget' in row:
      what = f'{row["budget"]} in all' if row['budget'] else 'drafter fed'
      cells = (*cells[:-1], f'{row["rows"]}, {what}')
    if 'stage' in row:
      parts.setdefault(cells, []).append(row)
      continue
    rounds.append(dict(zip(place, cells, strict=True)) | {
      'ms': f'{row["time_ms"]:.4g}',
      '[low, high]': f'[{row["time_ms_low"]:.4g}, {row["time_ms_high"]:.4g}]',
      'plain steps': f'{row["plain_steps"]:.2f}'
      if 'plain_steps' in row else '-',
      'reads': f'{row["time_ms"] / row["weight_read_ms"]:.2f}',
      'bandwidth': f'{row["bandwidth_fraction"]:.0%}',
    })  # fmt: skip
  report.table.print_columns(rounds, names=4)
  print(
    'ms: of a round, median of the calls; reads: in units of a one-row product '
    'with\neach weight matrix of the target; bandwidth: weights and context '
    'read once, of\nwhat the copy reads and writes in that time'
  )
  if not parts:
    return
  for title, key, values in (
    ('stage', 'stage', (*STAGES, profile.OTHER)),
    ('kind of operation', 'kind', profile.KINDS),
  ):
    lines = []
    for cells, rows in parts.items():
      lines.append(dict(zip(place, cells, strict=True)) | {
        value: f'{_share(rows, key, value):.1%}' for value in values
      })  # fmt: skip
    print(f'\nshare of a round by {title}\n')
    report.table.print_columns(lines, names=4)


def _share(rows: list[dict], key: str, value: str) -> float:
  """Of a round, what is of that stage or kind."""
  return sum(
    row['share']
    for row in rows
    if row.get(key) == value and ('kind' in row) == (key == 'kind')
  )


def packing(table: list[dict]) -> list[str]:
  """Lines on what packed rounds take, beside padded ones."""
  return [
    f'{row["drafter"]}, {row["budget"]} rows packed, for {row["target"]}, '
    f'batch {row["batch"]}, context {row["context"]}: '
    f'{1 / row["speedup_vs_padded"]:.2f} x the time of all '
    f'{row["batch"] * row["rows"]}'
    for row in table
    if row.get('budget')
  ]


def verification(table: list[dict]) -> list[str]:
  """Lines on how much of a round verification is, beside the paper's."""
  shares = collections.defaultdict(list)
  for row in table:
    if row['drafter'] == 'plain' or 'kind' in row:
      continue
    if row.get('stage') in ('verify', 'accept'):
      place = row['target'], row['drafter'], row['batch'], row['context']
      shares[place].append(row['share'])
  return [
    f'verify and accept of {drafter} for {target}, batch {batch}, context '
    f'{context}: {sum(both):.0%} of a round (paper, on GPUs: {PAPER})'
    for (target, drafter, batch, context), both in shares.items()
  ]


def main(config):
  started, points = report.results.now(), points_of(config)
  dtype = common.dtype(config.dtype)
  logs = common.logs(config, 'step_time')
  rate = timing.copy_rate()
  table = []
  for _, same_target in itertools.groupby(points, lambda point: point.target):
    params = drafters = None  # frees those of the last target
    for point in same_target:
      if params is None:
        params = random_target(point.cfg, dtype)
        drafters = [
          random_drafter(name, point.shape, dtype) for name in config.drafters
        ]
      print(
        f'{point.target}, batch {point.batch}, context {point.context}: '
        'compiling and timing', file=sys.stderr,
      )  # fmt: skip
      table += measure(config, point, params, drafters, rate, logs)
      result = report.results.build(
        'step_time', 'synthetic', [dict(op='copy', bytes_per_s=rate), *table],
        config=config.to_dict(), started=started,
      )  # fmt: skip
      # After each, so that a failure loses one only.
      path = report.results.write(result, config.name, root=config.results)
  print(
    f'synthetic (random weights) on {report.results.device()[0]}, '
    f'{config.dtype}; a copy reads and writes {rate / 1e9:.0f} GB/s\n'
  )
  show(table)
  print('\n'.join(['', *packing(table), *verification(table)]))
  points = {}  # a curve over the rows
  for row in table:
    if 'stage' not in row and 'budget' not in row:
      tag = '{target}/batch{batch}_context{context}_ms'.format_map(row)
      points.setdefault(row['drafter'], []).append(
        (row['rows'], {tag: row['time_ms']})
      )
  report.runs.log(logs, config=config.to_dict(), points=points)
  print(f'TensorBoard: tensorboard --logdir {config.results}')
  print(path)


if __name__ == '__main__':
  common.run(main)
