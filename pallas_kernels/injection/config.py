"""How an injection is cut up."""

import dataclasses
import itertools

from pallas_kernels import checks, tuning


@dataclasses.dataclass(frozen=True)
class Launch:
  """Of one of the three kernels on Hopper.

  Attributes:
    tile: weight rows of a thread block.
    step: columns read at a time, a multiple of 64 up to 256.
    stages: reads in flight.
  """

  tile: int
  step: int
  stages: int

  def __post_init__(self):
    checks.one_of(self, 'tile', (8, 16, 32, 64))
    checks.one_of(self, 'step', (64, 128, 192, 256))
    checks.at_least(self, 'stages', 2)

  def shared_bytes(self, left: int, matrices: int) -> int:
    """Of buffers of a thread block that reads so many states and weights."""
    streamed = 2 * self.stages * self.step * (64 * left + matrices * self.tile)
    # Tiles on the way in and out, and squares by tile, twice in a gate.
    return streamed + 2 * 64 * self.tile * 2 + 2 * 4 * 64 * 64


@dataclasses.dataclass(frozen=True)
class Config:
  """Of the Hopper kernels.

  Attributes:
    readout, gate, write: the launches.
    overlap: begin a launch while the one before it runs.
  """

  readout: Launch
  gate: Launch
  write: Launch
  overlap: bool = True

  def __post_init__(self):
    for name in ('readout', 'gate', 'write'):
      launch = getattr(self, name)
      if isinstance(launch, dict):  # from JSON
        object.__setattr__(self, name, Launch(**launch))
    for name, *reads in (('readout', 1, 1), ('gate', 2, 3), ('write', 1, 1)):
      need = getattr(self, name).shared_bytes(*reads)
      if need > checks.SHARED_BYTES:
        raise ValueError(
          f'{name} needs {need} bytes of shared memory, expected at most '
          f'{checks.SHARED_BYTES}'
        )


@dataclasses.dataclass(frozen=True)
class TpuConfig:
  """Of the TPU kernel.

  Attributes:
    readout, gate, write: weight rows of a step, in each phase: all of them, or
      a multiple of 128.
    vmem_bytes: what it may take of the vector memory.
  """

  readout: int
  gate: int
  write: int
  vmem_bytes: int = 48 * 2**20

  def __post_init__(self):
    for name in ('readout', 'gate', 'write', 'vmem_bytes'):
      checks.at_least(self, name, 1)


def tpu_config(rows: int, D: int, R: int, M: int) -> TpuConfig:
  """The widest tiles of up to 256 rows, which keep the reads in step."""
  del rows

  def tile(width):
    return next((t for t in (256, 128) if width % t == 0), width)

  return TpuConfig(tile(R), tile(M), tile(D))


def _tile(width: int, chunks: int, most: int) -> int:
  """The widest tile with which all multiprocessors have something to do."""
  for tile in (64, 32, 16, 8):
    if tile <= most and width % tile == 0 and width // tile * chunks >= 64:
      return tile
  return 16 if width % 16 == 0 else 8


def heuristic(rows: int, D: int, R: int, M: int) -> Config:
  """Enough thread blocks for the multiprocessors, weights in flight."""
  del D
  chunks = -(-rows // 64)
  # Partial sums are by tile, and are read again: not too many of them.
  readout = max(16, _tile(R, chunks, 64))
  return Config(
    readout=Launch(readout, 128, 4 if readout == 64 else 6),
    gate=Launch(_tile(M, chunks, 16), 128, 4),
    write=Launch(64, 128, 4),
  )


def candidates(rows: int, D: int, R: int, M: int) -> list[Config]:
  """Configs worth trying."""
  base = heuristic(rows, D, R, M)
  readouts = [(16, 128, 8), (32, 128, 6), (64, 128, 4), (16, 256, 4)]
  gates = [(8, 128, 5), (16, 128, 4), (32, 128, 3), (8, 256, 2)]
  writes = [(32, 128, 4), (64, 128, 4), (32, 256, 2)]
  found = [base, dataclasses.replace(base, overlap=False)]
  for name, options in zip(
    ('readout', 'gate', 'write'), (readouts, gates, writes), strict=True
  ):
    # Launches are tuned one by one, the others as they are.
    found += [
      dataclasses.replace(base, **{name: Launch(*option)}) for option in options
    ]
  return found


def key(rows: int, D: int, R: int, M: int) -> str:
  """Rows in powers of two from 8: neighbours share a config."""
  bucket = next(n for n in itertools.accumulate(
    itertools.repeat(8), lambda n, _: 2 * n) if n >= rows)  # fmt: skip
  return f'{bucket}x{D}x{R}x{M}'


def config_for(rows: int, D: int, R: int, M: int) -> Config:
  """The tuned config of a shape, or the heuristic."""
  return tuning.choose(
    'injection', Config, key(rows, D, R, M), heuristic(rows, D, R, M)
  )
