"""Where speculation pays: regions of load and context, and the evidence."""

import numpy as np

from experiments import common
from experiments import operating_evidence as evidence
from experiments import speculation_plan as planning
from experiments.operating_evidence import Measured
from experiments.random_weights import DRAFTERS, drafter_shapes
from experiments.speculation_plan import Shape
from spinejax import report
from spinejax.drafters.base import DraftModel
from spinejax.energy import operating
from spinejax.energy.hardware import CHIPS, TPUS, Chip, chip, of_device
from spinejax.energy.modelled import round_seconds
from spinejax.energy.operating import VALUES, Acceptance
from spinejax.energy.speculation import PLAIN, Rounds, saving
from spinejax.errors import InputError
from spinejax.report.maps import Panel, Point, operating_map
from spinejax.target.memory import memory_table

_TITLES = {'dspine': 'DSpine', 'dflash2': 'DFlash2', 'dflash': 'DFlash'}
_PLACES = 5  # of the modelled break-evens, each way


def check(config) -> None:
  """Refuses what can be seen before anything is read."""
  common.file_name('name', config.name)
  common.dtype(config.dtype)
  if config.drafter.name not in DRAFTERS:
    raise InputError(
      f'drafter.name = {config.drafter.name!r}, expected one of '
      f'{", ".join(DRAFTERS)}'
    )
  if not config.tokens:
    raise InputError('tokens is empty, expected at least one')
  for field in ('batches', 'contexts'):
    low, high = config[field]
    if not 1 <= low < high:
      raise InputError(f'{field} = {low}..{high}, expected a range from 1 on')
  common.positive(config, 'points')
  for name in config.chips:
    chip(name)
  if not config.table and not config.chips:
    raise InputError('table and chips are empty, expected one of them')


def measured_of(config, target: str) -> Measured | None:
  """The rounds of a table that are the target's; None without a table."""
  if not config.table:
    return None
  common.there(config, 'table', 'speculation_energy', 'or take :modelled')
  result = report.results.load(config.table)
  rounds = [
    row
    for row in operating.merged(result['metrics'])
    if row['target'] == target
  ]
  names = {(row['drafter'], row['rows']) for row in rounds}
  for name in ((PLAIN, 1), (config.drafter.name, config.drafter.block)):
    if name not in names:
      raise InputError(
        f'{config.table}: no rounds of {name[0]} with {name[1]} rows for '
        f'{target}'
      )
  laws = {value: operating.law_of(rounds, value) for value in VALUES}
  return Measured(
    result['device'], result['device_kind'], result['label'], rounds, laws
  )


def grid(config) -> tuple[np.ndarray, np.ndarray]:
  """Batches and contexts of the map."""
  return tuple(
    np.geomspace(*config[field], config.points)
    for field in ('batches', 'contexts')
  )


def panel_of_laws(
  config, found: Measured, shape: Shape, one: Acceptance,
  fits_YX: np.ndarray | None,
) -> Panel:  # fmt: skip
  """The measured machine: laws between points."""
  batch_X, context_Y = grid(config)
  name, rows = config.drafter.name, shape.draft.block
  batch_YX, context_YX = np.meshgrid(batch_X, context_Y)
  rounds = Rounds.of(name, batch_YX.ravel(), context_YX.ravel(), rows)
  tokens = one.tokens(shape.name, name, rows)
  energy_YX, time_YX = (
    saving(found.laws[value], rounds, tokens).reshape(batch_YX.shape)
    for value in VALUES
  )
  points = [
    Point(cell['batch'], cell['context'], cell['region'])
    for cell in operating.cells(found.rounds, [one])
    if (cell['drafter'], cell['rows']) == (name, rows)
  ]
  return Panel(batch_X, context_Y, time_YX, energy_YX, fits_YX, points)


def fits(config, machine: Chip, shape: Shape, batch, context) -> bool:
  """Whether a chip's memory holds weights, caches and activations."""
  sizes = int(batch), int(context), config.dtype
  return memory_table(shape.cfg, shape.draft, *sizes)['total'] < machine.memory


def fitting(config, machine: Chip, shape: Shape) -> np.ndarray:
  """Where on the map a chip's memory is large enough."""
  batch_X, context_Y = grid(config)
  return np.array([
    [fits(config, machine, shape, b, c) for b in batch_X] for c in context_Y
  ])  # fmt: skip


def panel_of_chip(
  config, machine: Chip, shape: Shape, draft: DraftModel, one: Acceptance,
  fits_YX: np.ndarray,
) -> Panel:  # fmt: skip
  """A modelled machine: with one power, what saves time saves energy."""
  batch_X, context_Y = grid(config)
  tokens = one.tokens(shape.name, config.drafter.name, config.drafter.block)

  def saved(batch, context):
    place = round(batch), round(context)
    took = round_seconds(
      machine, shape.cfg, draft, *place, round(tokens), config.dtype
    )
    step = round_seconds(machine, shape.cfg, None, *place, dtype=config.dtype)
    return 1 - took / tokens / step

  saved_YX = np.array([[saved(b, c) for b in batch_X] for c in context_Y])
  return Panel(batch_X, context_Y, saved_YX, saved_YX, fits_YX)


def modelled(config, machine: Chip, shape: Shape, draft) -> list[dict]:
  """Tokens a round from which on drafting pays on a modelled machine.

  At a few places, one token taken in by the drafter.
  """
  rows = []
  for batch in np.geomspace(*config.batches, _PLACES).round().astype(int):
    for context in np.geomspace(*config.contexts, _PLACES).round().astype(int):
      sizes = machine, shape.cfg
      place = dict(batch=int(batch), context=int(context), dtype=config.dtype)
      took = round_seconds(*sizes, draft, **place)
      step = round_seconds(*sizes, None, **place)
      rows.append(
        place
        | dict(
          platform=machine.name,
          break_even_modelled=took / step,
          fits=fits(config, machine, shape, batch, context),
        )
      )
  return rows


def notes_of(config, rows: list[dict]) -> list[str]:
  """What stands below the figure."""
  notes = []
  held = {
    row['value']: row
    for row in rows
    if row.get('split') == 'leave_one_place_out'
  }
  if held:
    notes.append(
      'points measured, regions by the law of rounds; at places it has not '
      f'seen it is {held["joules"]["mape"]:.0f} % (joules) and '
      f'{held["time_ms"]["mape"]:.0f} % (time) off'
    )
  if config.chips:
    notes.append(
      'modelled: roofline time at published limits x one power, so time and '
      'energy are saved together'
    )
  return notes


def main(config):
  started = report.results.now()
  check(config)
  common.results(config, 'operating_map')
  settings = config.drafter.to_dict()
  name = settings.pop('name')
  shape = planning.shape_of(config.target, **settings)
  draft = drafter_shapes(name, shape.draft)
  text = planning.acceptances(config.texts, (), shape.draft.block)
  forced = planning.acceptances((), config.tokens, shape.draft.block)
  found = measured_of(config, shape.name)
  panels, rows, cells = [], [], []
  device = dict(device_name=', '.join(config.chips))
  device |= dict(device_kind=', '.join(config.chips))
  if found is not None:
    machine = of_device(found.device_kind)
    cells = operating.cells(found.rounds, [*text, *forced])
    cells = [row for row in cells if row['drafter'] != PLAIN]
    rows = evidence.scored(found, [*text, *forced])
    rows += evidence.coefficients(found)
    rows += evidence.break_evens(config, found)
    rows += evidence.ranges(config, found)
    device = dict(device_name=found.device, device_kind=found.device_kind)
    room_YX = machine and fitting(config, machine, shape)
    panels.append((f'{found.device_kind}, {found.label}', [
      panel_of_laws(config, found, shape, one, room_YX) for one in forced
    ]))  # fmt: skip
  for each in config.chips:
    kind = f'TPU {each}' if each in TPUS else each.upper()
    room_YX = fitting(config, CHIPS[each], shape)
    panels.append((f'{kind}, modelled', [
      panel_of_chip(config, CHIPS[each], shape, draft, one, room_YX)
      for one in forced
    ]))  # fmt: skip
    rows += modelled(config, CHIPS[each], shape, draft)
  label = 'modelled' if found is None else found.label
  figure = operating_map(
    panels, [f'{tokens:g} tokens a round' for tokens in config.tokens],
    title=f'Where {_TITLES[name]} ({shape.draft.block} rows) pays for the '
    f'shape of {shape.name}',
    notes=notes_of(config, rows), label=label,
  )  # fmt: skip
  same = dict(target=shape.name, dtype=config.dtype)
  result = report.results.build(
    'operating_map', label, [same | row for row in [*rows, *cells]],
    config=config.to_dict(), started=started,
    **device,
  )  # fmt: skip
  path = report.results.write(result, config.name, root=config.results)
  report.figures.save(figure, path.with_suffix('.png'))
  if found is not None:
    print(f'{found.label} on {found.device}, {shape.name}\n')
    evidence.show(rows, cells)
  print(path)


if __name__ == '__main__':
  common.run(main)
