"""Fits SIMPLE and SweetSpot to a table of joules, and tests them."""

import csv
import dataclasses

import numpy as np

from experiments import common
from spinejax import report
from spinejax.energy import evaluate
from spinejax.energy.cells import Cells, architecture, cells_of, read_csv
from spinejax.energy.cost import prefill
from spinejax.energy.fit import WEIGHTS, check_weights
from spinejax.energy.simple import (
  VARIANTS,
  Simple,
  cached_prefix,
  cheapest_output,
  terms_of,
)
from spinejax.errors import InputError
from spinejax.report import figures
from spinejax.target.presets import preset

# The request of the SIMPLE paper: Llama 3.1 8B, 68K tokens in and 247 out, 63K
# of them in a cache; its joules without and with the cache, and the share of
# key/value reads that remains.
_PAPER = dict(model='llama-3.1-8b', input=68000, output=247)
_CACHED, _PUBLISHED = 63000, (1787.7, 668.7, 0.86)
# Requests whose parts are drawn.
_SHOWN = ((64, 64), (4096, 64), (64, 4096), (4096, 4096))


def table_of(path: str) -> tuple[Cells, np.ndarray]:
  """The composed requests of a table, or all where it does not say how."""
  cells, joules_N = read_csv(path)
  with open(path, encoding='utf-8-sig', newline='') as file:
    how = [row.get('how') or 'composed' for row in csv.DictReader(file)]
  kept_N = np.array([one == 'composed' for one in how])
  if not kept_N.any():
    raise InputError(f'{path}: no row whose how is composed')
  return cells[kept_N], joules_N[kept_N]


def check_label(label: str) -> None:
  """Refuses what no number can be worth."""
  if label not in report.LABELS:
    raise InputError(
      f'label = {label!r}, expected one of {", ".join(report.LABELS)}'
    )


def scores(config, cells: Cells, joules_N) -> tuple[list[dict], list[str]]:
  """Rows of all laws, and notes on what could not be computed."""
  rows, notes = [], []
  large_N = ~np.isin(cells.model_N, config.small)
  ranges = {'all': np.ones(len(cells), bool)}
  if large_N.any() and not large_N.all():
    ranges['1B and more'] = large_N
  for name, kept_N in ranges.items():
    some, joules = cells[kept_N], joules_N[kept_N]
    tried = [(v, w, some) for v in VARIANTS for w in (config.weights,)]
    other = WEIGHTS[config.weights == WEIGHTS[0]]
    tried.append((config.variant, other, some))
    tried.append(
      (config.variant, config.weights, evaluate.without_kv_ratio(some))
    )
    for i, (variant, weights, seen) in enumerate(tried):
      try:
        found, why = evaluate.by_split(Simple(variant, weights), seen, joules)
      except InputError as error:
        found, why = [], [f'{variant}: {error}']
      last = i == len(tried) - 1
      rows += [row | dict(range=name, kv_ratio=not last) for row in found]
      notes += why
    found, why = evaluate.sweetspot(some, joules, config.weights)
    rows += [row | dict(range=name, kv_ratio=False) for row in found]
    notes += why
  return rows, list(dict.fromkeys(notes))


def requests(law: Simple, cells: Cells) -> list[dict]:
  """Parts of requests, cheapest answers, and the paper's cached prefix."""
  rows = []
  for model in cells.models:
    first = np.flatnonzero(cells.model_N == model)[:1]
    one = cells[first]
    (best,) = cheapest_output(law, dataclasses.replace(
      one, input_N=np.array([64.0]), cached_N=np.zeros(1)
    ))  # fmt: skip
    if np.isfinite(best):
      rows.append(dict(model=model, input=64, cheapest_output=float(best)))
    for prompt, output in _SHOWN:
      parts = law.decompose(dataclasses.replace(
        one, input_N=np.array([float(prompt)]),
        output_N=np.array([float(output)]), cached_N=np.zeros(1),
      ))  # fmt: skip
      rows.append(
        dict(model=model, input=prompt, output=output)
        | {heading: float(part[0]) for heading, part in parts.items()}
      )
  return rows


def paper(law: Simple) -> dict:
  """The paper's request by our coefficients, and what the law leaves out."""
  cfg = preset(_PAPER['model'])
  one = cells_of([_PAPER | architecture(cfg)])
  whole = prefill(cfg, 1, _PAPER['input'])
  rest = prefill(cfg, 1, _PAPER['input'] - _CACHED, _CACHED)
  return _PAPER | dict(cached=_CACHED) | cached_prefix(law, one, _CACHED) | {
    # Of attention to products; a law linear in the prompt has none.
    'attention_flops': whole.attention_flops / whole.product_flops,
    'attention_flops_cached': rest.attention_flops / rest.product_flops,
  }  # fmt: skip


def show_scores(config, rows: list[dict]) -> None:
  """A line a law; a column a split, as R2 / MAPE."""
  lines: dict[tuple, dict] = {}
  for row in rows:
    name = row.get('variant', 'SweetSpot, a fit a model')
    if row['law'] == 'simple' and not row['kv_ratio']:
      name += ' without R'
    key = row['range'], name, row['weights']
    line = lines.setdefault(key, {
      'models': row['range'], 'law': name, 'weights': row['weights'],
      'in_sample': '-', **dict.fromkeys(evaluate.SPLITS, '-'),
    })  # fmt: skip
    r2 = '-' if row['r2'] is None else f'{row["r2"]:.3f}'
    line[row['split']] = f'{r2} {row["mape"]:.1f}'
  titles = {
    'in_sample': 'in sample', 'leave_one_model_out': 'model out',
    'leave_one_family_out': 'family out', 'extrapolation': '>= 4096',
  }  # fmt: skip
  report.table.print_columns(
    [{titles.get(k, k): v for k, v in line.items()} for line in lines.values()],
    names=3,
  )
  print(
    'R2 of joules, then mean absolute error in %; published: 0.969 12.0 in '
    'sample and\n0.944 13.3 for a model that was left out (H100, TensorRT-LLM)'
  )


def show_rest(coefficients, errors, made) -> None:
  """Coefficients, errors and the paper's request."""
  print()
  report.table.print_columns(
    [
      {
        'heading': row['heading'], 'term': row['term'],
        'J a unit': f'{row["value"]:.3g}', '95 %': interval(row, ''),
        'to prefill': '-' if row['ratio'] is None else f'{row["ratio"]:.3g}',
        '95 % of it': interval(row, 'ratio_'),
      }
      for row in coefficients
    ],
    names=2,
  )  # fmt: skip
  print()
  report.table.print_columns(
    [
      {
        'errors by': row['by'], 'which': str(row['which']),
        'bias %': f'{row["bias"]:+.1f}', 'MAPE %': f'{row["mape"]:.1f}',
      }
      for row in errors
    ],
    names=2,
  )  # fmt: skip
  without, cached, share = _PUBLISHED
  print(
    f'\n{made["model"]}, {made["input"]} tokens in and {made["output"]} out: '
    f'{made["joules"]:.0f} J (published, on an H100: {without:.0f}), with '
    f'{made["cached"]} of\nthem cached {made["joules_cached"]:.0f} J '
    f'({cached:.0f}), of which key/value reads {made["kv_share"]:.0%} '
    f'({share:.0%}). Beyond the fitted range: a prompt\nso long needs '
    f'{made["attention_flops"]:.2f} times as many operations for attention as '
    f'for products, its\nuncached rest {made["attention_flops_cached"]:.2f} '
    'times, and the law has no term for them.'
  )


def interval(row: dict, prefix: str) -> str:
  """The interval of a value in a row, for a table."""
  low, high = row[f'{prefix}low'], row[f'{prefix}high']
  return '-' if low is None else f'[{low:.3g}, {high:.3g}]'


def draw(config, root, law: Simple, cells: Cells, joules_N, errors, parts):
  """Three figures beside the result file."""
  about = dict(label=config.label)
  predicted_N = law.predict(cells)
  points = {
    name: (joules_N[cells.model_N == name], predicted_N[cells.model_N == name])
    for name in cells.models
  }
  title = f'SIMPLE, {law.variant}, on {config.device}'
  figures.save(
    figures.predicted_against(points, title=title, unit='J a request', **about),
    root / f'{config.name}_predicted.png',
  )
  bars = {
    by: {
      str(row['which']): (row['bias'], None, None)
      for row in errors
      if row['by'] == by
    }
    for by in ('input', 'output')
  }
  figures.save(
    figures.by_set(
      bars, title=f'{title}: bias by length', unit='% too much', **about
    ),
    root / f'{config.name}_residuals.png',
  )
  # Of the paper's model, if it is there.
  model = min(cells.models, key=lambda name: name != _PAPER['model'])
  bars = {}
  for row in parts:
    if row['model'] == model and 'output' in row:
      joules = {term.heading: row[term.heading] for term in law.terms}
      total = sum(joules.values())
      name = f'{row["input"]} in, {row["output"]} out: {total:.3g} J'
      bars[name] = {k: 100 * v / total for k, v in joules.items()}
  figures.save(
    figures.stacked(
      bars, title=f'{title}: a request of {model}', unit='% of its joules',
      **about,
    ),
    root / f'{config.name}_parts.png',
  )  # fmt: skip


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'resamples')
  terms_of(config.variant)
  check_weights(config.weights)
  check_label(config.label)
  common.there(config, 'table', 'measure_energy')
  cells, joules_N = table_of(config.table)
  root = common.results(config, 'fit_simple')
  law = Simple(config.variant, config.weights).fit(cells, joules_N)
  table, notes = scores(config, cells, joules_N)
  coefficients = evaluate.coefficients(
    law, cells, joules_N, config.resamples, config.seed
  )
  errors = evaluate.residuals(law, cells, joules_N)
  parts, cached = requests(law, cells), paper(law)
  result = report.results.build(
    'fit_simple', config.label,
    [*table, *coefficients, *errors, *parts, cached],
    config=config.to_dict(), started=started, device_name=config.device,
    device_kind=config.device,
  )  # fmt: skip
  path = report.results.write(result, config.name, root=config.results)
  draw(config, root, law, cells, joules_N, errors, parts)
  print(
    f'{config.label} on {config.device}: {len(cells)} requests of '
    f'{len(cells.models)} models\n'
  )
  show_scores(config, table)
  show_rest(coefficients, errors, cached)
  print('\n'.join(['', *notes] if notes else []))
  print(path)


if __name__ == '__main__':
  common.run(main)
