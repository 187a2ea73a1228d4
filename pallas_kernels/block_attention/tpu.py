"""Block attention for TPUs, in Pallas.

A step of the grid takes a tile of a request's context, for all groups of
heads. Tiles behind the valid length are not read: their step asks for the last
tile again, which is there. Norms, rotation and the append are left to XLA,
which fuses them with what is around them.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.block_attention import reference
from pallas_kernels.block_attention.config import TpuConfig

_F32 = jnp.float32


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
  config: TpuConfig,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """See `api.block_attention`; shapes are checked there."""
  dtype = k_BGTC.dtype
  q, k, v = reference.rotated(qkv_BQGJC, rope, norms, eps, dtype)
  B, Q, G, U, C = q.shape
  T, rows = k_BGTC.shape[2], U * Q
  tile = config.tile if T % config.tile == 0 else T
  own_k, own_v = k.swapaxes(1, 2), v.swapaxes(1, 2)

  def whole(i, t, lengths):
    return i, 0, 0, 0

  def of_context(i, t, lengths):
    last = jnp.maximum(lax.div(lengths[i] + (tile - 1), tile), 1) - 1
    return i, 0, jnp.minimum(t, last), 0

  queries = pl.BlockSpec((1, G, rows, C), whole)
  own = pl.BlockSpec((1, G, Q, C), whole)
  context = pl.BlockSpec((1, G, tile, C), of_context)
  mixed = pl.pallas_call(
    functools.partial(_body, Q=Q, causal=causal, tile=tile),
    out_shape=jax.ShapeDtypeStruct((B, G, rows, C), dtype),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(B, T // tile),
      in_specs=[queries, own, own, context, context],
      out_specs=queries,
      scratch_shapes=[
        pltpu.VMEM((G, rows, C), _F32),
        pltpu.VMEM((G, rows, 1), _F32),
        pltpu.VMEM((G, rows, 1), _F32),
      ],
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary')
    ),
    name='block_attention',
  )(
    length_B, q.transpose(0, 2, 3, 1, 4).reshape(B, G, rows, C), own_k, own_v,
    k_BGTC, v_BGTC,
  )  # fmt: skip
  mixed = mixed.reshape(B, G, U, Q, C).transpose(0, 3, 1, 2, 4)
  if append:
    k_BGTC = reference.appended(k_BGTC, k, length_B)
    v_BGTC = reference.appended(v_BGTC, v, length_B)
  return mixed.reshape(B, Q, -1), k_BGTC, v_BGTC


def _dot(x, y, contracted):
  exact = x.dtype == _F32
  return lax.dot_general(
    x, y, (contracted, ((), ())), preferred_element_type=_F32,
    precision=lax.Precision.HIGHEST if exact else None,
  )  # fmt: skip


def _body(
  lengths, q, own_k, own_v, k, v, out, mixed, top, total, *, Q, causal, tile
):
  step = pl.program_id(1)
  length = lengths[pl.program_id(0)]
  groups, rows, C = mixed.shape

  def attend(g, keys, values, seen):
    x = _dot(q[0, g], keys, ((1,), (1,))) * C**-0.5
    x = jnp.where(seen, x, -jnp.inf)
    # The block itself comes first, so every row has seen something.
    new_top = jnp.maximum(top[g], jnp.max(x, axis=1, keepdims=True))
    fade = jnp.exp(top[g] - new_top)
    weights = jnp.exp(x - new_top)
    total[g] = total[g] * fade + jnp.sum(weights, axis=1, keepdims=True)
    weights = weights.astype(values.dtype)
    mixed[g] = mixed[g] * fade + _dot(weights, values, ((1,), (0,)))
    top[g] = new_top

  @pl.when(step == 0)
  def _():
    mixed[...] = jnp.zeros_like(mixed)
    top[...] = jnp.full_like(top, -jnp.inf)
    total[...] = jnp.zeros_like(total)
    column = lax.broadcasted_iota(jnp.int32, (rows, Q), 1)
    row = lax.rem(lax.broadcasted_iota(jnp.int32, (rows, Q), 0), jnp.int32(Q))
    seen = column <= row if causal else column >= 0
    for g in range(groups):
      attend(g, own_k[0, g], own_v[0, g], seen)

  @pl.when(step * tile < length)
  def _():
    left = length - step * tile
    seen = lax.broadcasted_iota(jnp.int32, (rows, tile), 1) < left
    # Rows past the length may hold anything, and 0 x NaN is NaN.
    live = lax.broadcasted_iota(jnp.int32, (tile, C), 0) < left
    for g in range(groups):
      values = jnp.where(live, v[0, g], jnp.zeros((), v.dtype))
      attend(g, k[0, g], values, seen)

  @pl.when(step == pl.num_programs(1) - 1)
  def _():
    out[0] = (mixed[...] / total[...]).astype(out.dtype)
