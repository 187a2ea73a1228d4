"""How block attention is cut up."""

import dataclasses

from pallas_kernels import checks, tuning


@dataclasses.dataclass(frozen=True)
class Plan:
  """Of the Hopper kernel, which has no choice to make.

  Attributes:
    crowded: whether there are more groups of heads than multiprocessors.
    splits: thread blocks of a group at most.
    long: context rows of a thread block, where crowded, before others share
      them.
  """

  crowded: bool
  splits: int
  long: int = 2048

  @classmethod
  def of(cls, groups: int, capacity: int, processors: int = 132) -> 'Plan':
    """Of so many groups of all requests."""
    if groups > processors:
      return cls(True, min(8, -(-capacity // cls.long)))
    return cls(False, min(8, processors // groups))

  @property
  def stages(self) -> int:
    """Tiles in flight."""
    return 2 if self.crowded else 3


@dataclasses.dataclass(frozen=True)
class TpuConfig:
  """Of the TPU kernel.

  Attributes:
    tile: context rows of a step; where they do not divide the capacity, a
      step takes all of it.
  """

  tile: int = 256

  def __post_init__(self):
    checks.one_of(self, 'tile', (128, 256, 512))


def key(requests, rows, groups, heads, head_dim, capacity) -> str:
  return f'{requests}x{rows}x{groups}x{heads}x{head_dim}x{capacity}'


def tpu_config(*shape) -> TpuConfig:
  """The tuned config of a shape, as `key` takes it, or the heuristic."""
  return tuning.choose('block_attention', TpuConfig, key(*shape), TpuConfig())
