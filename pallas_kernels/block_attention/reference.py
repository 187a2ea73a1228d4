"""The specification of block attention, in plain jnp and float32."""

import jax
import jax.numpy as jnp
from jax import lax


def block_attention(
  qkv_BQGJC: jax.Array,
  k_BGTC: jax.Array,
  v_BGTC: jax.Array,
  length_B: jax.Array,
  rope: tuple[jax.Array, jax.Array],
  norms: tuple[jax.Array, jax.Array] | None,
  *,
  eps: float,
  causal: bool,
  append: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """As `api.block_attention`, which documents it."""
  B, Q, _, _, C = qkv_BQGJC.shape
  T = k_BGTC.shape[2]
  dtype = k_BGTC.dtype
  q, k, v = rotated(qkv_BQGJC, rope, norms, eps, dtype)
  keys = jnp.concatenate([k_BGTC, k.swapaxes(1, 2)], axis=2)
  values = jnp.concatenate([v_BGTC, v.swapaxes(1, 2)], axis=2)
  # Rows past the length may hold anything, and 0 x NaN is NaN.
  at = jnp.arange(T + Q)
  live = (at < length_B[:, None]) | (at >= T)
  keys, values = (
    jnp.where(live[:, None, :, None], x.astype(jnp.float32), 0.0)
    for x in (keys, values)
  )
  own = at - T <= (jnp.arange(Q)[:, None] if causal else Q)
  seen = live[:, None] & (own | (at < T))
  scores = jnp.einsum('bqguc,bgtc->bguqt', q.astype(jnp.float32), keys)
  scores = jnp.where(seen[:, None, None], scores * C**-0.5, -jnp.inf)
  mixed = jnp.einsum('bguqt,bgtc->bqguc', jax.nn.softmax(scores), values)
  out = mixed.astype(dtype).reshape(B, Q, -1)
  if append:
    k_BGTC = appended(k_BGTC, k, length_B)
    v_BGTC = appended(v_BGTC, v, length_B)
  return out, k_BGTC, v_BGTC


def rotated(qkv_BQGJC, rope, norms, eps, dtype):
  """Queries [B, Q, G, U, C], keys and values [B, Q, G, C] of the block:
  normed and rotated in float32, then in the cache's dtype."""
  J = qkv_BQGJC.shape[3]
  qkv = qkv_BQGJC.astype(jnp.float32)
  q, k, v = qkv[..., : J - 2, :], qkv[..., J - 2, :], qkv[..., J - 1, :]
  if norms is not None:
    q, k = (
      x
      * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
      * scale.astype(jnp.float32)
      for x, scale in zip((q, k), norms, strict=True)
    )
  cos, sin = rope
  q = _rotate(q, cos[:, :, None], sin[:, :, None]).astype(dtype)
  return q, _rotate(k, cos, sin).astype(dtype), v.astype(dtype)


def _rotate(x, cos, sin):
  left, right = jnp.split(x, 2, axis=-1)
  return jnp.concatenate(
    [left * cos - right * sin, right * cos + left * sin], axis=-1
  )


def appended(cache_BGTC, rows_BQGC, length_B):
  """The cache with rows behind the valid ones; those past it are dropped."""
  at = length_B[:, None] + jnp.arange(rows_BQGC.shape[1])
  write = jax.vmap(lambda cache, at, rows: cache.at[:, at].set(
    rows.swapaxes(0, 1), mode='drop'))  # fmt: skip
  return write(cache_BGTC, at, rows_BQGC)
