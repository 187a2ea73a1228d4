"""The specification of the adjacent causal injection, in plain jnp.

Letters as in arXiv 2609.36173 and sgl-project/SpecForge
`specforge/modeling/draft/dspine.py`:

  f_j = sqrt(r) normalise(W_R h_j)        feature of slot j
  u_1 = sqrt(r) c(anchor), u_j = f_{j-1}  predecessor
  g_j = sigmoid(W_recv f_j + W_pred u_j + bias)
  h_j += |h_j| / sqrt(D) * W_O (g_j * W_msg u_j)
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

Dense = Callable[[jax.Array, jax.Array], jax.Array]


def dense(x: jax.Array, weight: jax.Array) -> jax.Array:
  """Product of x [..., I] with a weight stored [O, I]."""
  return lax.dot_general(
    x, weight, (((x.ndim - 1,), (1,)), ((), ())),
    precision=lax.Precision.HIGHEST,
  )  # fmt: skip


def safe_norm(x: jax.Array) -> jax.Array:
  """Euclidean norm over the last axis, kept, float32; gradient 0 at 0."""
  square = jnp.sum(x.astype(jnp.float32) ** 2, axis=-1, keepdims=True)
  positive = square > 0
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def normalise(x: jax.Array) -> jax.Array:
  """x / max(|x|, 1e-12), in float32, cast back."""
  x32 = x.astype(jnp.float32)
  return (x32 / jnp.maximum(safe_norm(x32), 1e-12)).astype(x.dtype)


def feature(
  h: jax.Array, readout_RD: jax.Array, dense: Dense = dense
) -> jax.Array:
  """f = sqrt(r) normalise(W_R h), [..., R]."""
  return normalise(dense(h, readout_RD)) * readout_RD.shape[0] ** 0.5


def write(
  h: jax.Array,
  f: jax.Array,
  u: jax.Array,
  receiver_MR: jax.Array,
  predecessor_MR: jax.Array,
  message_MR: jax.Array,
  bias_M: jax.Array,
  write_DM: jax.Array,
  dense: Dense = dense,
) -> jax.Array:
  """h + |h| / sqrt(D) * W_O (sigmoid(W_recv f + W_pred u + bias) * W_msg u).

  Receivers h and their features f broadcast against predecessors u, so one
  receiver can be tried with many predecessors.
  """
  g = jax.nn.sigmoid(
    dense(f, receiver_MR) + dense(u, predecessor_MR) + bias_M.astype(f.dtype)
  )
  q = g * dense(u, message_MR)
  scale = (safe_norm(h) * h.shape[-1] ** -0.5).astype(h.dtype)
  return h + scale * dense(q, write_DM)


def injection(
  h_BKD: jax.Array,
  anchor_BR: jax.Array,
  readout_RD: jax.Array,
  receiver_MR: jax.Array,
  predecessor_MR: jax.Array,
  message_MR: jax.Array,
  bias_M: jax.Array,
  write_DM: jax.Array,
  dense: Dense = dense,
) -> jax.Array:
  """As `api.injection`, which documents it; any number of leading axes.

  Args:
    dense: the product, where a platform has a better one.
  """
  f = feature(h_BKD, readout_RD, dense)
  u = jnp.concatenate([anchor_BR[..., None, :], f[..., 1:-1, :]], axis=-2)
  written = write(
    h_BKD[..., 1:, :], f[..., 1:, :], u, receiver_MR, predecessor_MR,
    message_MR, bias_M, write_DM, dense,
  )  # fmt: skip
  return jnp.concatenate([h_BKD[..., :1, :], written], axis=-2)
