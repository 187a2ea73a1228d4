"""Measures joules and time of rounds, and composes tokens of them."""

import dataclasses
import itertools
import pathlib
import sys
import time

import jax
import numpy as np

from experiments import common
from experiments import speculation_plan as planning
from experiments.metering import Baseline, resumed
from experiments.random_weights import random_drafter, random_target
from experiments.speculation_plan import Group, Piece, Shape
from spinejax import report
from spinejax.decode import timing
from spinejax.decode.loop import capacity_bucket
from spinejax.drafters.base import DraftModel
from spinejax.drafters.loading import plain_model
from spinejax.energy import meters, operating, windows
from spinejax.energy.speculation import PLAIN
from spinejax.errors import InputError

# Of a config, what may differ when a run is taken up again.
_FREE = ('name', 'results', 'budget_minutes', 'meter', 'again', 'tokens',
         'texts', 'batches', 'whole', 'seed')  # fmt: skip
_KINDS = 'round', 'whole', 'idle', 'baseline'  # that are kept
_WARM = 2  # rounds of the calls that tell how long one takes


class Clock:
  """The budget, and what has taken longest so far."""

  def __init__(self, began: float, minutes: float, reserve: float):
    self._end, self._longest = began + 60 * minutes - reserve, {}

  def allows(self, what: str) -> bool:
    """Whether there is time for one more; of what was never done, there is."""
    took = self._longest.get(what, 0.0)
    return not took or time.monotonic() + took <= self._end

  def note(self, what: str, since: float) -> None:
    """One has been done."""
    took = time.monotonic() - since
    self._longest[what] = max(took, self._longest.get(what, 0.0))


def models_of(config, shape: Shape) -> dict[tuple[str, int], DraftModel]:
  """Plain decoding and the drafters, by name and rows."""
  dtype, models = common.dtype(config.dtype), {(PLAIN, 1): plain_model()}
  for name, rows, _ in config.drafters:
    draft = dataclasses.replace(shape.draft, block=rows)
    models[name, rows] = random_drafter(name, draft, dtype)
  return models


class Rounds:
  """The rounds of a group, compiled."""

  def __init__(self, config, group: Group, params, models):
    self._config, self._group = config, group
    self._bench = timing.Bench(
      group.shape.cfg, params, batch=group.batch, rounds=config.rounds,
      context=min(piece.context for piece in group.pieces),
      capacity=group.capacity,
    )  # fmt: skip
    keys = list(dict.fromkeys((p.drafter, p.rows) for p in group.pieces))
    programs = self._bench.compile([models[k] for k in keys], forces=True)
    self._programs = dict(zip(keys, programs, strict=True))

  def measure(self, meter: meters.Meter, piece: Piece) -> dict:
    """The metric row of one window.

    Raises:
      InputError: requests ended before the rounds did; or see `windows.read`.
    """
    config, batch = self._config, self._group.batch
    program = self._programs[piece.drafter, piece.rows]
    program.survival_S = planning.survival_of(piece)
    for _ in range(2):  # the first one warms up
      began = time.perf_counter()
      jax.block_until_ready(self._start(program, piece, _WARM))
      each = (time.perf_counter() - began) / _WARM
    rounds = config.rounds
    if piece.kind == 'round':
      rounds = int(np.clip(config.call_seconds / each, 1, rounds))
    start = self._first(piece, rounds)
    done = self._start(program, piece, rounds)
    ran_B, length_B = jax.device_get((done.rounds_B, done.length_B))
    if not (ran_B == rounds).all():
      raise InputError(
        f'{piece}: requests ended after {ran_B.min()} rounds of {rounds}, '
        'expected none to end'
      )
    # Every call draws the same.
    tokens = (length_B - start).sum() / (batch * rounds)
    window = windows.steady(
      lambda: self._start(program, piece, rounds), config.seconds,
      config.settle,
    )  # fmt: skip
    reading = windows.read(meter, window)
    joules, time_ms = reading.joules / rounds, 1e3 * reading.seconds / rounds
    row = dict(
      kind=piece.kind, target=self._group.shape.name, drafter=piece.drafter,
      rows=piece.rows, batch=batch, context=piece.context,
      capacity=self._group.capacity, dtype=config.dtype, rounds=rounds,
      calls=window.calls, tokens_per_round=float(tokens), watts=reading.watts,
    )  # fmt: skip
    if piece.kind == 'whole':
      each = tokens * batch
      return row | dict(
        joules_per_token=joules / each, time_ms=time_ms / tokens,
        tokens_per_s=1e3 * each / time_ms, **meter.state(),
      )  # fmt: skip
    by_power = reading.integrated
    return row | dict(
      joules=joules, time_ms=time_ms,
      joules_by_power=None if by_power is None else by_power / rounds,
      **meter.state(),
    )  # fmt: skip

  def _start(self, program, piece: Piece, rounds: int):
    return self._bench.start(program, self._first(piece, rounds), rounds)

  def _first(self, piece: Piece, rounds: int) -> int:
    """The context of the first round, such that their mean is the piece's."""
    return piece.context - round(piece.tokens * (rounds - 1) / 2)


def run(config, meter, groups, rows, clock, write) -> tuple[int, list[str]]:
  """Measures what is missing until the budget is spent.

  A group that fails does not keep the others from being measured.

  Args:
    write: called after every window.

  Returns:
    Windows that are left, and what went wrong.
  """
  failed = []
  for shape, some in itertools.groupby(groups, lambda group: group.shape):
    some = [group for group in some if planning.missing(config, group, rows)]
    params = models = None  # frees those of the last target
    for group in some:
      if not clock.allows('group'):
        break
      since = time.monotonic()
      if params is None:
        params = random_target(shape.cfg, common.dtype(config.dtype))
        models = models_of(config, shape)
        window = windows.idle(config.idle_seconds, config.settle)
        watts = windows.idle_watts(meter, window)
        rows.append(dict(kind='idle', target=shape.name, watts=watts))
      pieces = planning.missing(config, group, rows)
      print(
        f'{shape.name}, batch {group.batch}: {len(pieces)} windows',
        file=sys.stderr,
      )
      try:
        made = Rounds(config, group, params, models)
        clock.note('group', since)
        for piece in pieces:
          since = time.monotonic()
          if not clock.allows('window'):
            break
          try:
            rows.append(made.measure(meter, piece))
          except InputError as error:  # of this window alone
            failed.append(_said(group, error))
          clock.note('window', since)
          write()
      except jax.errors.JaxRuntimeError as error:  # caches may be gone
        failed.append(_said(group, error))
      made = None  # frees its caches
  return sum(len(planning.missing(config, g, rows)) for g in groups), failed


def _said(group: Group, error: Exception) -> str:
  text = ' '.join(str(error).split())[:300]
  text = f'{group.shape.name}, batch {group.batch}: {text}'
  print(text, file=sys.stderr)
  return text


def wholes(rows: list[dict]) -> list[dict]:
  """Those run whole, with the joules and time that are composed for them."""
  rounds = {
    (r['target'], r['drafter'], r['rows'], r['batch'], r['context']): r
    for r in operating.merged(rows)
  }
  found = []
  for row in rows:
    one = rounds.get(planning.key_of(row)[1:])
    if row['kind'] == 'whole' and one is not None:
      tokens = row['tokens_per_round']
      found.append(row | dict(
        joules_composed=one['joules'] / (tokens * row['batch']),
        time_ms_composed=one['time_ms'] / tokens,
      ))  # fmt: skip
  return found


def show(rows: list[dict], cells: list[dict], refused: list[dict]) -> None:
  """What tokens take by drafter, repeats, and rounds run whole."""
  lines, groups = [], {}
  for row in cells:
    name = row['target'], row['drafter'], row['rows']
    groups.setdefault(name, []).append(row)
  for (target, drafter, block), some in groups.items():
    joules = [row['joules_per_token'] for row in some]
    regions = [row.get('region') for row in some]
    lines.append({
      'target': target, 'drafter': f'{drafter} {block}',
      'places': str(len({(r['batch'], r['context']) for r in some})),
      'J a token': f'{min(joules):.3g} .. {max(joules):.3g}',
      'cells': str(len(some)),
    } | {
      name: str(regions.count(name)) if drafter != PLAIN else '-'
      for name in operating.REGIONS
    })  # fmt: skip
  if lines:
    report.table.print_columns(lines, names=2)
    print(
      'cells: places times acceptance; of them, those in which speculation '
      'saves time\nand energy, only one of them, or neither'
    )
  apart = operating.apart(rows)
  if apart:
    print(f'repeats: {len(apart)}, {max(apart):.1%} apart at most (expected: '
          f'3 %), {np.mean(apart):.1%} on average')  # fmt: skip
  for row in wholes(rows):
    joules = row['joules_per_token'] / row['joules_composed'] - 1
    time_ms = row['time_ms'] / row['time_ms_composed'] - 1
    print(
      f'whole: {row["target"]}, {row["drafter"]}, batch {row["batch"]}, '
      f'context {row["context"]}, {row["tokens_per_round"]:.2f} tokens a '
      f'round: {joules:+.1%} joules, {time_ms:+.1%} time beside composed'
    )
  for row in refused:
    print(
      f'left out: {row["target"]}, batch {row["batch"]}, context '
      f'{row["context"]}: about {row["gib_needed"]:.1f} GiB are needed, '
      f'{row["gib_free"]:.1f} GiB are free'
    )


def main(config):
  began, started = time.monotonic(), report.results.now()
  groups, refused = planning.plan(config)
  acceptances = planning.acceptances(
    config.texts, config.tokens, max(rows for _, rows, _ in config.drafters)
  )
  root = common.results(config, 'speculation_energy')
  rows = resumed(config, root / f'{config.name}.json', _FREE)
  rows = [row for row in rows if row['kind'] in _KINDS]

  def write(last=False) -> pathlib.Path:
    cells = operating.cells(operating.merged(rows), acceptances) if last else []
    cells = [dict(kind='cell') | cell for cell in cells]
    result = report.results.build(
      'speculation_energy', 'measured', [*rows, *refused, *cells],
      config=config.to_dict(), started=started,
    )  # fmt: skip
    if last:
      show(rows, cells, refused)
    return report.results.write(result, config.name, root=config.results)

  with meters.open_meter(config.meter) as meter:
    print(f'joules by {meter.source}', file=sys.stderr)
    capacity = capacity_bucket(min(config.contexts) + config.rounds + 2)
    baseline = Baseline(
      config, meter, max(config.batches), capacity, min(config.contexts)
    )
    baseline.measure(rows)
    # The last seconds are the closing baseline's.
    reserve = 2 * (config.seconds + config.settle)
    clock = Clock(began, config.budget_minutes, reserve)
    left, failed = run(config, meter, groups, rows, clock, write)
    baseline.measure(rows)
  print(f'measured on {report.results.device()[0]}, {meter.source}\n')
  path = write(last=True)
  print(baseline.say())
  if left:
    print(f'left for the same command again: {left} windows')
  print(path)
  if failed:
    raise InputError(f'not measured: {"; ".join(failed)}')


if __name__ == '__main__':
  common.run(main)
