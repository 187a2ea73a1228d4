"""How the choice of a path is cut up."""

import dataclasses

from pallas_kernels import checks, tuning


@dataclasses.dataclass(frozen=True)
class Config:
  """Of the Hopper kernel.

  Attributes:
    step: columns read at a time, a multiple of 64.
    stages: reads in flight.
  """

  step: int = 64
  stages: int = 5

  def __post_init__(self):
    checks.one_of(self, 'step', (64, 128, 256))
    checks.at_least(self, 'stages', 2)
    need = 4 * 2 * 64 * self.step * self.stages
    if need > checks.SHARED_BYTES - 24 * 1024:
      raise ValueError(
        f'step = {self.step}, stages = {self.stages} need {need} bytes of '
        f'shared memory, expected at most {checks.SHARED_BYTES - 24 * 1024}'
      )


def candidates() -> list[Config]:
  """Configs worth trying."""
  sizes = ((64, 2), (64, 3), (64, 5), (64, 6), (128, 2), (128, 3))
  return [Config(*size) for size in sizes]


def key(requests: int, slots: int, count: int, message: int) -> str:
  return f'{requests}x{slots}x{count}x{message}'


def config_for(requests, slots, count, message) -> Config:
  """The tuned config of a shape, or the heuristic."""
  name = key(requests, slots, count, message)
  return tuning.choose('transition', Config, name, Config())
