"""SIMPLE on a measured GPU beside TPUs: which coefficients transfer."""

import csv
import dataclasses
import pathlib
import sys

import numpy as np

from experiments import common
from experiments.fit_simple import check_label, interval, table_of
from spinejax import report
from spinejax.energy import evaluate
from spinejax.energy.cells import Cells
from spinejax.energy.hardware import Watts, chip
from spinejax.energy.modelled import compiled_step, request_joules
from spinejax.energy.simple import Simple, terms_of
from spinejax.errors import InputError
from spinejax.report import figures
from spinejax.target.config import TargetConfig
from spinejax.target.presets import preset

# A step that is compiled for chips: model, batch, context.
_STEP = ('llama-3.2-1b', 64, 1023)


@dataclasses.dataclass(frozen=True)
class Platform:
  """Joules of requests on one platform.

  Attributes:
    label: of the joules.
    watts: what they rest on where they are modelled.
  """

  name: str
  label: str
  watts: Watts | None
  cells: Cells
  joules_N: np.ndarray


def shapes_of(path) -> list[tuple[TargetConfig, int, int, int]]:
  """The shape, input, output and batch of each composed request of a table."""
  names = ('layers', 'width', 'heads', 'kv_heads', 'head_dim', 'vocab', 'ffn')
  found = []
  with open(path, encoding='utf-8-sig', newline='') as file:
    reader = csv.DictReader(file)
    for name in (*names, 'batch'):
      if name not in reader.fieldnames:
        raise InputError(
          f'{path}: no column {name}, expected what is needed to model the '
          'same requests elsewhere'
        )
    for row in reader:
      if (row.get('how') or 'composed') != 'composed':
        continue
      try:
        sizes = {name: int(row[name]) for name in names}
        lengths = [int(row[x]) for x in ('input', 'output', 'batch')]
      except ValueError:
        raise InputError(
          f'{path}, line {reader.line_num}: expected whole numbers in '
          f'{", ".join((*names, "batch"))}'
        ) from None
      found.append((TargetConfig(family='llama', **sizes), *lengths))
  return found


def platforms_of(config) -> list[Platform]:
  """The measured platform first, then what it is compared with."""
  common.there(config, 'table', 'measure_energy')
  cells, joules_N = table_of(config.table)
  shapes = shapes_of(config.table)
  made = [Platform(config.chip, config.label, None, cells, joules_N)]
  for name in dict.fromkeys((config.chip, *config.chips)):
    one = chip(name)
    modelled_N = np.array([
      request_joules(
        one, cfg, prompt, output, batch=batch,
        prompt_tokens=config.prompt_tokens,
      )
      for cfg, prompt, output, batch in shapes
    ])  # fmt: skip
    title = f'{name} roofline' if name == config.chip else name
    made.append(Platform(title, 'modelled', one.watts, cells, modelled_N))
  for path in config.others:
    name = pathlib.Path(path).stem
    made.append(Platform(name, config.label, None, *table_of(path)))
  return made


def compiled(config) -> list[dict]:
  """What the chips' compilers say of a step, over what is counted here."""
  cfg, batch, context = preset(_STEP[0]), *_STEP[1:]
  rows = []
  for name in config.compiled:
    found = compiled_step(chip(name), cfg, batch, context)
    told = {f'compiled_{key}': value for key, value in found.items()}
    rows.append(
      dict(platform=name, target=_STEP[0], batch=batch, context=context) | told
    )
    shown = ', '.join(
      f'{key} {"untold" if value is None else f"{value:.3g} x"}'
      for key, value in found.items()
    )
    print(f'{name}, compiled over counted: {shown}')
  return rows


def fitted(config, one: Platform) -> tuple[Simple, list[dict]]:
  """A platform's law, its scores, and its coefficients with intervals."""
  law = Simple(config.variant)
  same = dict(platform=one.name, joules_are=one.label)
  if one.watts is not None:
    same |= {f'watts_{k}': v for k, v in dataclasses.asdict(one.watts).items()}
  rows, notes = evaluate.by_split(law, one.cells, one.joules_N)
  for note in notes:
    print(f'{one.name}: {note}', file=sys.stderr)
  law.fit(one.cells, one.joules_N)
  rows += evaluate.coefficients(
    law, one.cells, one.joules_N, config.resamples, config.seed
  )
  return law, [same | row for row in rows]


def crossed(platforms: list[Platform], laws: list[Simple]) -> list[dict]:
  """The first platform's law on all others, and theirs on the first."""
  rows = []
  for other, law in zip(platforms[1:], laws[1:], strict=True):
    for source, target, one in (
      (platforms[0], other, laws[0]), (other, platforms[0], law),
    ):  # fmt: skip
      rows += [
        dict(of=source.name, on=target.name) | row
        for row in evaluate.rescaled(one, target.cells, target.joules_N)
      ]
  return rows


def show(platforms: list[Platform], rows: list[dict]) -> None:
  """Ratios, coefficients, and how laws cross over; in this order."""
  terms = [row for row in rows if 'term' in row]
  first = {row['term']: row for row in terms
           if row['platform'] == platforms[0].name}  # fmt: skip
  lines = []
  for row in terms:
    mine = first[row['term']]
    told = mine['ratio_low'] is not None and row['ratio_low'] is not None
    meets = told and (
      row['ratio_low'] <= mine['ratio_high']
      and mine['ratio_low'] <= row['ratio_high']
    )
    lines.append({
      'platform': row['platform'], 'joules are': row['joules_are'],
      'term': row['term'],
      'to prefill': '-' if row['ratio'] is None else f'{row["ratio"]:.3g}',
      '95 %': interval(row, 'ratio_'),
      'meets the first': ('yes' if meets else 'no') if told else '-',
    })  # fmt: skip
  report.table.print_columns(
    [x for x, row in zip(lines, terms, strict=True)
     if row['heading'] != 'prefill'], names=3,
  )  # fmt: skip
  print(
    'to prefill: the coefficient over that of prefill, which does not depend '
    'on watts\n'
  )
  lines = []
  for one in platforms:
    own = [row for row in rows if row.get('platform') == one.name]
    scored = {row['split']: row['mape'] for row in own if 'split' in row}
    out = scored.get('leave_one_model_out')
    watts, band = one.watts, '-'
    if watts is not None:
      band = f'{watts.value:g} [{watts.low:g}, {watts.high:g}] {watts.basis}'
    values: dict[str, list[str]] = {}
    for row in own:
      if 'term' in row:
        values.setdefault(row['heading'], []).append(f'{row["value"]:.3g}')
    lines.append({'platform': one.name, 'watts': band} | {
      heading: ' '.join(each) for heading, each in values.items()
    } | {
      'MAPE %': f'{scored["in_sample"]:.1f}',
      'model out': '-' if out is None else f'{out:.1f}',
    })  # fmt: skip
  report.table.print_columns(lines, names=2)
  print('joules a unit; modelled ones go up and down with the watts\n')
  lines = []
  for row in rows:
    if 'scaled' not in row:
      continue
    if row['scaled'] == 'as_is':
      lines.append({'law of': row['of'], 'on': row['on']})
    lines[-1][row['scaled']] = f'{row["mape"]:.0f}'
    if row['scale']:
      factors = ' '.join(f'{x:.2g}' for x in row['scale'])
      lines[-1]['factor' if row['scaled'] == 'one_scale' else 'factors'] = (
        factors
      )
  report.table.print_columns(lines, names=2)
  print(
    'MAPE in % of the law as it is, after one factor, after one a heading '
    '(prefill,\nkey/value reads, next token)'
  )


def draw(path: pathlib.Path, rows: list[dict], label: str) -> None:
  """Ratios of the coefficients, platform by platform."""
  bars: dict[str, dict] = {}
  for row in rows:
    if 'term' in row and row['heading'] != 'prefill' and row['ratio']:
      bars.setdefault(row['term'], {})[row['platform']] = (
        np.log10(row['ratio']), None, None
      )  # fmt: skip
  figure = figures.by_set(
    bars, title='Coefficients to that of prefill', label=label,
    unit='log10 of the ratio',
  )  # fmt: skip
  figures.save(figure, path)


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'resamples', 'prompt_tokens')
  terms_of(config.variant)
  check_label(config.label)
  for name in (config.chip, *config.chips, *config.compiled):
    chip(name)
  platforms = platforms_of(config)
  root = common.results(config, 'transfer')
  laws, rows = [], []
  for one in platforms:
    law, found = fitted(config, one)
    laws.append(law)
    rows += found
  rows += crossed(platforms, laws) + compiled(config)
  device = f'{config.chip} and {", ".join(config.chips)}'
  result = report.results.build(
    'transfer', 'modelled', rows, config=config.to_dict(), started=started,
    device_name=device, device_kind=config.chip,
  )  # fmt: skip
  path = report.results.write(result, config.name, root=config.results)
  draw(root / f'{config.name}.png', rows, 'modelled')
  show(platforms, rows)
  print(path)


if __name__ == '__main__':
  common.run(main)
