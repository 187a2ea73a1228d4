"""Prints the memory that a configuration will need, before it is run."""

import jax
from rich import console, table

from experiments import common
from spinejax.decode.loop import capacity_bucket
from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.shape import drafter_config
from spinejax.target.loading import target_config
from spinejax.target.memory import available_bytes, memory_table


def main(config):
  common.positive(config, 'batch', 'context')
  dtype = common.dtype(config.dtype)
  cfg = target_config(config.target)
  drafter = drafter_config(DSpineConfig, cfg, **config.drafter)
  capacity = capacity_bucket(config.context + config.drafter.block)
  parts = memory_table(cfg, drafter, config.batch, capacity, dtype)
  shown = table.Table(
    title=f'{config.target}, batch {config.batch}, capacity {capacity}, '
    f'{config.dtype} (modelled)'
  )
  shown.add_column('part')
  shown.add_column('GiB', justify='right')
  for name, size in parts.items():
    shown.add_row(name, f'{size / 2**30:.3f}')
  have = available_bytes()
  out = console.Console()
  out.print(shown)
  if have is not None:
    verdict = 'fits' if parts['total'] <= have else 'does not fit'
    out.print(
      f'{verdict}: {have / 2**30:.1f} GiB are free on '
      f'{jax.local_devices()[0].device_kind}', highlight=False,
    )  # fmt: skip


if __name__ == '__main__':
  common.run(main)
