"""How block attention is cut up. The Hopper kernel has no choice to make."""

import dataclasses

from pallas_kernels import checks, tuning


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
