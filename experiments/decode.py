"""Decodes prompts plainly and with drafters; compares tokens and speed."""

import pathlib

from rich import console, progress

from experiments import common, inspection
from spinejax import report
from spinejax.decode import compare, cost
from spinejax.decode.request import whole
from spinejax.drafters.loading import load_drafter, plain_model
from spinejax.errors import InputError
from spinejax.prompts import PromptSet, by_name
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target
from spinejax.verify.sampling import Sampling

# Prompts that acceptance is measured on where the block is to be chosen.
_SURVEYED = 4


def settings_of(config) -> compare.Settings:
  """The settings of decoding; refuses what can be seen before loading."""
  common.file_name('name', config.name)
  check_drafters(config, may_choose=True)
  whole('inspect', config.inspect, 0, 1000)
  if config.block == 0 and config.same_rows:
    raise InputError('block = 0, expected at least 2 where same_rows is set')
  return compare.Settings(
    config.max_new_tokens, config.temperature, config.top_k, config.top_p,
    config.seed, config.batch,
  )  # fmt: skip


def check_drafters(config, may_choose: bool = False) -> None:
  """Refuses names of drafters, and a block, that cannot be meant."""
  if config.block < 2 and not (may_choose and config.block == 0):
    choose = ', or 0: choose' if may_choose else ''
    raise InputError(f'block = {config.block}, expected at least 2{choose}')
  if not config.drafters:
    raise InputError('drafters is empty, expected at least one')
  for name in config.drafters:
    if not isinstance(name, str):
      raise InputError(f'drafters has {name!r}, expected names or paths')
    if name == 'plain':
      raise InputError('drafters: plain is always run, leave it out')
    if config.drafters.count(name) > 1:
      raise InputError(f'drafters names {name!r} twice')


def prompt_sets(config) -> list[PromptSet]:
  """The prompts that the config names, sets of different names.

  Says so where prompts, or turns of them, are left out.
  """
  sets = common.prompt_sets(config)
  for spec, kept in zip(config.prompts.split(','), sets, strict=True):
    every = by_name(spec)
    if len(kept) < len(every):
      print(
        f'{kept.name}: {len(kept)} of {len(every)} prompts '
        '(--config.limit=0 takes all)'
      )
    more = sum(len(turns) > 1 for turns in kept.turns)
    if more:
      print(f'{kept.name}: of {more} prompts only the first turn is asked')
  return sets


def load(config, dtype, same_rows: bool = False, mesh=None):
  """The target, and the drafters by their names in the table."""
  target = load_target(config.target, dtype, mesh)
  drafters = {'plain': plain_model()}
  if same_rows:
    drafters[compare.SAME_ROWS] = plain_model(config.block - 1)
  for source in config.drafters:
    model = load_drafter(source, target, block=config.block or None)
    name = model.drafter.name
    if name in drafters:  # another one of the same method
      name = f'{name}, {pathlib.Path(source).name}'
    if name in drafters:
      raise InputError(f'drafters: two are called {name!r}')
    drafters[name] = model
  return target, drafters


def decode(
  config, settings, target, drafters, prompts, capacity, out
) -> list[dict]:
  """Metric rows of one prompt set; shows progress, and some answers."""
  out.print(
    f'{prompts.name}: {len(prompts)} prompts x {", ".join(drafters)}, at most '
    f'{settings.max_new_tokens} tokens each', markup=False, highlight=False,
  )  # fmt: skip
  with progress.Progress(
    console=console.Console(stderr=True), transient=True
  ) as bar:
    task = bar.add_task(prompts.name, total=None)
    done = compare.run(
      target, drafters, [turns[:1] for turns in prompts.turns], settings,
      lambda name, share: bar.update(
        task, total=1.0, completed=share, description=f'{prompts.name} {name}'
      ), capacity,
    )  # fmt: skip
  name, shown = list(done.runs.items())[-1]
  for i in range(min(config.show, len(prompts))):
    out.rule(f'{prompts.name}, prompt {i}')
    out.print(prompts.turns[i][0], style='dim', markup=False, highlight=False)
    out.rule(f'answer ({name})')
    out.print(shown.completions[i].text, markup=False, highlight=False)
  table = compare.rows(target, done, settings, prompts.name)
  for row in table:
    row['rows'] = drafters[row['drafter']].drafter.slots + 1
  return table


def choose_blocks(settings, target, drafters, ids, capacity):
  """The drafters, each at the block that is expected to be the fastest.

  Prints what it rests on: the time of a round at each number of rows, and how
  many tokens a round of so many rows yields on a few of the prompts.
  """
  batch = min(settings.batch, len(ids))
  law = dict(
    temperature=settings.temperature, top_k=settings.top_k,
    top_p=settings.top_p,
  )  # fmt: skip
  few = ids[:: -(-len(ids) // _SURVEYED)]
  chosen, lines, notes = dict(drafters), [], []
  for name in list(drafters)[1:]:
    costs = cost.probe(
      target, drafters[name], batch, capacity,
      sampling=Sampling.make(batch, **law),
    )  # fmt: skip
    survival = cost.measure_survival(
      target, drafters[name], few, batch, capacity=capacity, **law,
      seed=settings.seed, max_new_tokens=min(64, settings.max_new_tokens),
    )  # fmt: skip
    best, rates = cost.best_width(costs, survival), costs.tokens_per_s(survival)
    chosen[name] = cost.with_width(drafters[name], best)
    for width, rate in rates.items():
      tokens = cost.expected_tokens(survival, width)
      lines.append({
        'drafter': name if width > 1 else 'plain', 'rows': str(width),
        'ms/round': f'{costs.round_ms[width]:.2f}',
        'tokens/round': f'{tokens:.2f}', 'tokens/s': f'{rate:.1f}',
      })  # fmt: skip
    slower = ', though plain decoding is expected to be faster'
    notes.append(
      f'{name}: block {best}{slower if rates[1] > rates[best] else ""}'
    )
  print(f'expected at batch {batch}, capacity {capacity}, without prefill\n')
  report.table.print_columns(lines, names=1)
  print('\n'.join(['', *notes, '']))
  return chosen


def main(config):
  out, started = console.Console(), report.results.now()
  settings, sets = settings_of(config), prompt_sets(config)
  dtype, mesh = common.dtype(config.dtype), make_mesh(config.mesh)
  logs = common.logs(config, 'decode')
  target, drafters = load(config, dtype, config.same_rows, mesh)
  ids = [  # or an error, now
    one for prompts in sets for one in
    compare.encode(target, [turns[:1] for turns in prompts.turns], settings)
  ]  # fmt: skip
  capacity = compare.capacity_for(drafters, ids, settings)
  if config.block == 0:
    drafters = choose_blocks(settings, target, drafters, ids, capacity)
  table = [
    row
    for prompts in sets
    for row in decode(
      config, settings, target, drafters, prompts, capacity, out
    )
  ]
  report.print_table(table, label='measured', device=report.results.device()[0])
  figure = report.figures.acceptance_by_position(
    compare.curves(table), label='measured',
    title=f'{target.name}, block {config.block or "chosen"}, '
    f'{config.dtype}, {sum(map(len, sets))} prompts',
  )  # fmt: skip
  result = report.results.build(
    'decode', 'measured', table, config=config.to_dict(), started=started
  )
  path = report.results.write(result, config.name, root=config.results)
  report.figures.save(figure, path.with_suffix('.png'))
  report.runs.log(
    logs, config=config.to_dict(), points=report.runs.points_of(table),
    figures={'acceptance_by_position': figure},
  )  # fmt: skip
  if config.inspect:
    inspection.write(logs, target, drafters, ids[0], config)
  out.print(compare.summary(table), markup=False, highlight=False)
  print(f'TensorBoard: tensorboard --logdir {config.results}')
  print(f'Figure: {path.with_suffix(".png")}')
  print(path)


if __name__ == '__main__':
  common.run(main)
