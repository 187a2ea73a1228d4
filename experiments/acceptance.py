"""How many tokens a round drafters give on sets of prompts."""

from absl import logging

from experiments import common
from spinejax import report
from spinejax.decode import acceptance
from spinejax.decode.request import whole
from spinejax.drafters import load_drafter
from spinejax.errors import InputError
from spinejax.report.figures import acceptance_by_position, save
from spinejax.report.paths import portable_text
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target


def show(rows: list[dict]) -> None:
  """A line a drafter, set and temperature."""
  report.table.print_columns(
    [
      {
        'drafter': row['source'],
        'dataset': row['dataset'],
        'T': f'{row["temperature"]:g}',
        'tokens/round': _interval(row),
        'loops': str(row['repetitive']),
        'prompts': str(row['total']),
      }
      for row in rows
    ],
    names=2,
  )


def _interval(row: dict) -> str:
  value, low, high = (
    row[f'tokens_per_round{end}'] for end in ('', '_low', '_high')
  )
  if low is None:  # of a single prompt
    return f'{value:.2f}'
  return f'{value:.2f} [{low:.2f}, {high:.2f}]'


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'max_new_tokens', 'batch')
  whole('limit', config.limit, 0, 2**31)
  dtype = common.dtype(config.dtype)
  root = common.results(config, 'acceptance')
  sets = common.prompt_sets(config)
  if not config.drafters or not config.temperatures:
    raise InputError('drafters and temperatures, expected at least one of each')
  sources = [portable_text(str(x)) for x in config.drafters]
  common.distinct('drafters', sources)
  if config.offline and any(config.temperatures):
    raise InputError(
      f'temperatures = {tuple(config.temperatures)}, expected (0.0,) with '
      'offline: sampled answers cannot be replayed'
    )
  target = load_target(config.target, dtype, mesh=make_mesh(config.mesh))
  drafts = [
    load_drafter(name, target, block=config.block or None)
    for name in config.drafters
  ]
  acceptance.check(
    target, sets, temperatures=config.temperatures, batch=config.batch,
    max_new_tokens=config.max_new_tokens,
  )  # fmt: skip
  how = dict(
    batch=config.batch, max_new_tokens=config.max_new_tokens, seed=config.seed
  )
  rows, answers = [], None
  if config.offline:
    answers = acceptance.decode(target, drafts[0], sets, **how)
  for source, draft in zip(sources, drafts, strict=True):
    for temperature in config.temperatures:
      logging.info('%s at temperature %g', source, temperature)
      rows += [
        {'source': source} | row
        for row in acceptance.measure(
          target, draft, sets, temperature=temperature, answers=answers, **how
        )
      ]
  result = report.results.build(
    'acceptance', 'measured', rows, config=config.to_dict(), started=started
  )
  path = report.results.write(result, config.name, root=config.results)
  figures, curves = (
    {},
    {
      f'{row["source"]}, {row["dataset"]}, T {row["temperature"]:g}': row[
        'acceptance_by_position'
      ]
      for row in rows
      if 'acceptance_by_position' in row
    },
  )
  if curves:  # plain decoding proposes nothing
    figure = acceptance_by_position(curves, title=target.name, label='measured')
    save(figure, root / f'{config.name}.png')
    figures = {'acceptance_by_position': figure}
  report.runs.log(
    common.logs(config, 'acceptance'), config=config.to_dict(),
    points=report.runs.points_of(rows), figures=figures,
  )  # fmt: skip
  show(rows)
  print(path)


if __name__ == '__main__':
  common.run(main)
