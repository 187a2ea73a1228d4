"""A product of few rows for Hopper, in Mosaic GPU.

The operands are swapped: the weights are the 64 rows of a tensor-core tile,
and the few rows of x its columns, of which there may be as few as 8. So hardly
any of a tile is wasted, and time is that of reading the weights.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import hopper
from pallas_kernels.product.config import Config

MOST_ROWS = 64


def product(x_QI: jax.Array, weight_OI: jax.Array, config: Config) -> jax.Array:
  """See `api.product`; shapes are checked there."""
  rows, inputs = x_QI.shape
  # A copy takes whole swizzle rows, or all rows where there are fewer.
  if rows > 8:
    x_QI = jnp.pad(x_QI, ((0, -rows % 8), (0, 0)))
  Q, outputs = len(x_QI), len(weight_OI)
  N, tile = -(-Q // 8) * 8, config.tile
  body = functools.partial(
    _body, tile=tile, step=min(config.step, -(-inputs // 64) * 64),
    stages=config.stages,
  )  # fmt: skip
  staged = plgpu.SMEM(
    (N, hopper.ROWS),
    x_QI.dtype,
    transforms=(
      plgpu.TilingTransform((8, tile)),
      plgpu.SwizzleTransform(2 * tile),
    ),
  )
  y_QO = plgpu.kernel(
    body,
    out_type=jax.ShapeDtypeStruct((Q, outputs), x_QI.dtype),
    grid=(outputs // tile,),
    grid_names=('tile',),
    scratch_types=[staged],
    kernel_name='product',
  )(x_QI, weight_OI)
  return y_QO[:rows]


def _body(x, weight, out, staged, *, tile, step, stages):
  first = lax.axis_index('tile') * tile
  N = staged.shape[0]
  (y,) = hopper.products(
    [
      hopper.Operand(weight, first, tile, hopper.ROWS),
      hopper.Operand(x, 0 * first, N, N),
    ],
    [(0, 1)],
    step=step,
    stages=stages,
  )
  staged.transpose((1, 0))[...] = y.astype(out.dtype)
  plgpu.commit_smem()
  for i in range(0, N, 8):
    plgpu.copy_smem_to_gmem(
      staged.at[pl.ds(i, 8), pl.ds(0, tile)],
      # Not static, so that it may reach past the rows: they are not written.
      out.at[pl.ds(0 * first + i, 8), pl.ds(first, tile)],
    )
  plgpu.wait_smem_to_gmem(0)
