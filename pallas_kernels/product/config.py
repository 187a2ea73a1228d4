"""How a product of few rows is cut up."""

import dataclasses

from pallas_kernels import checks, tuning


@dataclasses.dataclass(frozen=True)
class Config:
  """Of the Hopper kernel.

  Attributes:
    tile: weight rows of a thread block, 16, 32 or 64. A tensor-core tile has
      64; fewer leave part of it unused, but occupy more multiprocessors.
    step: columns read at a time, a multiple of 64 up to 256.
    stages: reads in flight.
  """

  tile: int = 64
  step: int = 128
  stages: int = 6

  def __post_init__(self):
    checks.one_of(self, 'tile', (16, 32, 64))
    checks.one_of(self, 'step', (64, 128, 192, 256))
    checks.at_least(self, 'stages', 2)

  def shared_bytes(self, rows: int) -> int:
    """Shared memory of a thread block."""
    rows = -(-rows // 8) * 8
    return 2 * (self.stages * self.step * (64 + rows) + 64 * rows)


def candidates(rows: int, outputs: int) -> list[Config]:
  """Configs worth trying for a product of `rows` rows."""
  every = [
    Config(tile, step, stages)
    for tile in (16, 32, 64)
    for step, stages in ((64, 8), (128, 4), (128, 6), (128, 8), (256, 4))
  ]
  return [
    c
    for c in every
    if outputs % c.tile == 0 and c.shared_bytes(rows) <= checks.SHARED_BYTES
  ]


def config_for(rows: int, outputs: int, inputs: int) -> Config:
  """The tuned config of a shape, or: tiles enough for all multiprocessors."""
  tile = 64 if outputs >= 64 * 96 or outputs % 32 else 32
  return tuning.choose(
    'product', Config, f'{rows}x{inputs}x{outputs}', Config(tile)
  )
