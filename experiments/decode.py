"""Decodes prompts plainly and with drafters; compares tokens and speed."""

import functools
import pathlib

import jax.numpy as jnp
from ml_collections import config_flags
from rich import console, progress

from experiments import common
from spinejax import report
from spinejax.decode import compare
from spinejax.drafters.loading import load_drafter, plain_model
from spinejax.prompts import by_name
from spinejax.target.loading import load_target

_CONFIG = config_flags.DEFINE_config_file('config', lock_config=True)


def load(config):
  """The target, and the drafters by their names in the table."""
  target = load_target(config.target, jnp.dtype(config.dtype))
  drafters = {'plain': plain_model()}
  if config.same_rows:
    drafters[compare.SAME_ROWS] = plain_model(config.block - 1)
  for name in config.drafters:
    model = load_drafter(name, target, block=config.block)
    drafters[model.drafter.name] = model
  return target, drafters


def decode(config, target, drafters, prompts, out) -> list[dict]:
  """Metric rows of one prompt set; shows progress, and some answers."""
  settings = compare.Settings(
    config.max_new_tokens, config.temperature, config.top_k, config.top_p,
    config.seed, config.batch,
  )  # fmt: skip
  with progress.Progress(
    console=console.Console(stderr=True), transient=True
  ) as bar:
    task = bar.add_task(prompts.name, total=None)
    done = compare.run(
      target, drafters, prompts.turns, settings,
      lambda name, share: bar.update(
        task, total=1.0, completed=share, description=f'{prompts.name} {name}'
      ),
    )  # fmt: skip
  for i in range(min(config.show, len(prompts))):
    out.rule(f'{prompts.name}, prompt {i}: {list(done.runs)[-1]}')
    out.print(prompts.turns[i][-1], style='dim', markup=False)
    answer = list(done.runs.values())[-1].completions[i]
    out.print(answer.text, markup=False, highlight=False)
  return compare.rows(target, done, settings, prompts.name)


def main(_):
  config, out = _CONFIG.value, console.Console()
  started = report.results.now()
  find = functools.partial(by_name, limit=config.limit or None)
  sets = [find(name) for name in config.prompts.split(',')]
  target, drafters = load(config)
  table = [
    row for p in sets for row in decode(config, target, drafters, p, out)
  ]
  report.print_table(table, label='measured', device=report.results.device()[0])
  figure = report.figures.acceptance_by_position(
    compare.curves(table), title=f'{target.name}, {config.prompts}',
    label='measured',
  )  # fmt: skip
  result = report.results.build(
    'decode', 'measured', table, config=config.to_dict(), started=started
  )
  path = report.results.write(result, config.name, root=config.results)
  report.figures.save(figure, path.with_suffix('.png'))
  logs = pathlib.Path(config.tensorboard) / 'decode' / config.name
  with report.Writer(logs) as writer:
    writer.config(config.to_dict())
    writer.image(0, 'acceptance_by_position', report.figures.to_image(figure))
    for row in table:
      numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
      writer.scalars(0, {
        f'{row["dataset"]}/{row["drafter"]}/{k}': v for k, v in numbers.items()
      })  # fmt: skip
  out.print(compare.summary(table), markup=False, highlight=False)
  print(f'TensorBoard: tensorboard --logdir {config.tensorboard}')
  print(f'Figure: {path.with_suffix(".png")}')
  print(path)


if __name__ == '__main__':
  common.run(main)
