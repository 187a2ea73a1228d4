"""The specification of a product of few rows, in plain jnp."""

import jax
import jax.numpy as jnp
from jax import lax


def product(x_QI: jax.Array, weight_OI: jax.Array) -> jax.Array:
  """x W^T [Q, O] in x's dtype, summed in float32."""
  return lax.dot_general(
    x_QI, weight_OI, (((1,), (1,)), ((), ())),
    precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32,
  ).astype(x_QI.dtype)  # fmt: skip
