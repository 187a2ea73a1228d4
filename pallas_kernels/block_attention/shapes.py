"""Named shapes of block attention."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
  """Lengths are spread evenly over requests between the two ends."""

  requests: int
  rows: int
  groups: int
  heads: int  # of a group
  head_dim: int
  capacity: int
  shortest: int
  longest: int

  @property
  def lengths(self) -> list[int]:
    steps = max(1, self.requests - 1)
    spread = self.longest - self.shortest
    return [self.shortest + spread * i // steps for i in range(self.requests)]


SHAPES = {
  'qwen3-8b_1': Shape(1, 16, 8, 4, 128, 1280, 1024, 1024),
  'qwen3-8b_8': Shape(8, 16, 8, 4, 128, 1280, 1024, 1024),
  'qwen3-8b_32_short': Shape(32, 16, 8, 4, 128, 8192, 256, 1024),
  'qwen3-8b_32_half': Shape(32, 16, 8, 4, 128, 8192, 256, 4096),
  'qwen3-8b_32_ragged': Shape(32, 16, 8, 4, 128, 8192, 256, 8192),
  'smollm2_1': Shape(1, 16, 3, 3, 64, 640, 300, 300),
}
TOY = {'toy': Shape(2, 8, 2, 2, 64, 128, 5, 70)}
