"""Pieces of kernels for Hopper, in Mosaic GPU: tiles and streamed products."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS = 64  # of the left side of a tensor-core product
WGMMA = plgpu.Layout.WGMMA
PER_ROW = WGMMA.reduce(1)  # one value a row of such a tile
PER_COLUMN = WGMMA.reduce(0)


def is_at_hand() -> bool:
  """Whether a Hopper is there; where there is no GPU, one is compiled for."""
  device = jax.local_devices()[0]
  return device.platform != 'gpu' or device.compute_capability == '9.0'


def tiled(shape: Sequence[int], dtype):
  """Shared memory laid out for the tensor cores, free of bank conflicts."""
  itemsize = jnp.dtype(dtype).itemsize
  wide = min(shape[-1], 128 // itemsize)
  return plgpu.SMEM(
    shape,
    dtype,
    transforms=(
      plgpu.TilingTransform((8, wide)),
      plgpu.SwizzleTransform(wide * itemsize),
    ),
  )


@dataclasses.dataclass(frozen=True)
class Operand:
  """Rows of a matrix in global memory, one side of a product.

  Attributes:
    ref: the matrix [*, depth].
    first: the first row taken.
    rows: rows taken; what lies behind the matrix is read as zeros.
    height: rows of the buffer; those that nothing is read into hold anything,
      and so do their rows (or columns) of the product.
    early: may be read before `ready`.
  """

  ref: object
  first: jax.Array
  rows: int
  height: int
  early: bool = False


def products(
  operands: Sequence[Operand],
  pairs: Sequence[tuple[int, int]],
  *,
  step: int,
  stages: int,
  ready: Callable[[], None] | None = None,
) -> tuple[jax.Array, ...]:
  """left @ right^T of pairs of operands, streamed through shared memory.

  Args:
    pairs: indices of (left, right) among the operands; a left one is 64 high.
    step: columns read at a time, a multiple of 64.
    stages: reads in flight.
    ready: called when the early operands are on their way, and before others
      are read.

  Returns:
    float32 [left height, right height] of each pair, in the layout WGMMA.
  """
  depth = operands[0].ref.shape[1]
  steps = -(-depth // step)
  stages = min(stages, steps)

  def streamed(buffers, arrived):
    def fetch(i, slot, early=None):
      columns = pl.ds(pl.multiple_of(i * step, step), step)
      for operand, buffer in zip(operands, buffers, strict=True):
        if early is None or early == operand.early:
          plgpu.copy_gmem_to_smem(
            operand.ref.at[pl.ds(operand.first, operand.rows), columns],
            buffer.at[slot, pl.ds(0, operand.rows)],
            arrived.at[slot],
          )

    for early in (True, False):
      if ready is not None and not early:
        ready()
      for slot in range(stages):
        fetch(jnp.int32(slot), slot, early)

    def accumulate(*accs):
      def one(i, _):
        slot = lax.rem(i, jnp.int32(stages))
        plgpu.barrier_wait(arrived.at[slot])
        for acc, (left, right) in zip(accs, pairs, strict=True):
          plgpu.wgmma(
            acc,
            buffers[left].at[slot],
            buffers[right].at[slot].transpose((1, 0)),
          )
        # The products of this step may run on; those before it are done, and
        # what they read may be overwritten.
        plgpu.wgmma_wait(len(pairs))
        last = i - 1

        @pl.when((last >= 0) & (last + stages < steps))
        def _():
          fetch(last + stages, lax.rem(last, jnp.int32(stages)))

        return ()

      lax.fori_loop(jnp.int32(0), jnp.int32(steps), one, ())
      return tuple(acc[...] for acc in accs)

    return pl.run_scoped(
      accumulate,
      *(
        plgpu.ACC((operands[i].height, operands[j].height), jnp.float32)
        for i, j in pairs
      ),
    )

  return pl.run_scoped(
    streamed,
    [tiled((stages, x.height, step), x.ref.dtype) for x in operands],
    plgpu.Barrier(num_arrivals=len(operands), num_barriers=stages),
  )
