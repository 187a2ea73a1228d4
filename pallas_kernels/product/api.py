"""A product of few rows with a weight matrix."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import hopper
from pallas_kernels.product import gpu, reference
from pallas_kernels.product.config import config_for


def product(x_QI: jax.Array, weight_OI: jax.Array) -> jax.Array:
  """x W^T [Q, O]: by the Hopper kernel where it takes the shapes.

  Not used by default: XLA's own product is, until the kernel is measured to
  win inside a whole round.

  Args:
    x_QI, weight_OI: of one dtype; the sum is float32.
  """
  if not supported(x_QI, weight_OI):
    return reference.product(x_QI, weight_OI)
  return lax.platform_dependent(
    x_QI, weight_OI, cuda=_on_gpu, default=reference.product
  )


def supported(x_QI: jax.Array, weight_OI: jax.Array) -> bool:
  """Whether the kernel takes these shapes and dtypes, on the GPU at hand."""
  rows, inputs = x_QI.shape
  return (
    {x_QI.dtype, weight_OI.dtype} == {jnp.dtype(jnp.bfloat16)}
    and rows <= gpu.MOST_ROWS
    and len(weight_OI) % hopper.ROWS == 0
    and inputs % 8 == 0  # lines of whole 16 bytes
    and jax.typeof(weight_OI).sharding.mesh.size <= 1
    and hopper.is_at_hand()
  )


@jax.jit
def _on_gpu(x_QI, weight_OI):
  config = config_for(len(x_QI), len(weight_OI), x_QI.shape[1])
  return gpu.product(x_QI, weight_OI, config)
