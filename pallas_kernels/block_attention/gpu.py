"""Block attention for Hopper, in Mosaic GPU.

One thread block takes one group of heads of one request, and every n-th tile
of its context, where n splits share it. The 64 rows of a tensor-core tile are
the group's heads x query rows. It norms and rotates queries and the block's
keys itself, appends the block to the cache, and reads context rows up to the
valid length only, three tiles of 64 in flight. Splits are joined by their
log-sum-exp.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compat import load
from pallas_kernels.hopper import WGMMA, tiled

TILE = 64  # rows of a tensor-core tile, and context rows of a step
_STAGES = 3
_LOG2E = math.log2(math.e)
_F32 = jnp.float32


def _slab(rows: int) -> int:
  """Rows that the queries of one head take in a tile: whole swizzle rows."""
  return -(-rows // 8) * 8


def fits(heads: int, rows: int, head_dim: int) -> bool:
  """Whether `heads` (of a group) x `rows` queries fit one tile."""
  return heads * _slab(rows) <= TILE and head_dim in (64, 128)


def splits_for(groups: int, processors: int = 132) -> int:
  """Ranges of a context that keep the multiprocessors busy: at most 8."""
  return max(1, min(8, processors // groups))


def block_attention(
  qkv_BQJ: jax.Array,
  k_BGTC: jax.Array,
  v_BGTC: jax.Array,
  length_B: jax.Array,
  cos_BQC: jax.Array,
  sin_BQC: jax.Array,
  norms: tuple[jax.Array, jax.Array] | None,
  *,
  eps: float,
  causal: bool,
  append: bool,
):
  """See `api.block_attention`; shapes are checked there."""
  rows = qkv_BQJ.shape[1]
  if rows > 8 and rows % 8:  # a copy takes whole swizzle rows
    pad = ((0, 0), (0, -rows % 8), (0, 0))
    qkv_BQJ, cos_BQC, sin_BQC = (
      jnp.pad(x, pad) for x in (qkv_BQJ, cos_BQC, sin_BQC)
    )
  B, Q, X = qkv_BQJ.shape
  G, T, C = k_BGTC.shape[1:]
  J = X // (G * C)
  U, S = J - 2, _slab(Q)
  splits = splits_for(B * G)
  dtype, half = k_BGTC.dtype, C // 2
  body = functools.partial(
    _body, rows=rows, Q=Q, G=G, U=U, C=C, splits=splits, eps=eps, causal=causal,
    append=append, normed=norms is not None,
  )  # fmt: skip
  shape = (B, Q, G * U * C)
  out_type = [jax.ShapeDtypeStruct(shape, dtype)]
  if splits > 1:
    out_type = [
      jax.ShapeDtypeStruct((splits, B, G, TILE, C), dtype),
      jax.ShapeDtypeStruct((splits, B, G, TILE), _F32),
    ]
  halves = (tiled((TILE, half), dtype),) * 2
  scratch = [
    halves, halves,  # queries, keys
    tiled((TILE, C), dtype),  # values, then the result
    # What is appended: a row of the cache starts anywhere, so not swizzled.
    (plgpu.SMEM((TILE, half), dtype),) * 2,
    (plgpu.SMEM((S, half), dtype),) * 2,
    (tiled((TILE, half), _F32),) * 2,  # cosine, sine
    (plgpu.SMEM((half,), dtype),) * 4, plgpu.SMEM((TILE,), _F32),
    (tiled((_STAGES, TILE, half), dtype),) * 2,
    tiled((_STAGES, TILE, C), dtype),
    plgpu.Barrier(num_arrivals=2 * U + 7 + 4 * (norms is not None)),
    plgpu.Barrier(num_arrivals=3, num_barriers=_STAGES),
  ]  # fmt: skip

  def table(x_BQC):
    """A row for every row of a tile."""
    padded = jnp.pad(x_BQC, ((0, 0), (0, S - Q), (0, 0)))
    return jnp.tile(padded, (1, U, 1))

  keys, values = k_BGTC, v_BGTC
  if append:
    keys, values = jax.new_ref(k_BGTC), jax.new_ref(v_BGTC)
  out = pl.kernel(
    lambda *refs: pl.run_scoped(functools.partial(body, *refs), *scratch),
    out_type=out_type,
    mesh=plgpu.Mesh(grid=(B * G, splits), grid_names=('group', 'split')),
    compiler_params=plgpu.CompilerParams(approx_math=True),
    name='block_attention',
  )(
    qkv_BQJ, keys, values, length_B, table(cos_BQC), table(sin_BQC),
    *(norms or ()),
  )  # fmt: skip
  mixed = out[0] if splits == 1 else _join(*out, Q=Q, U=U, S=S)
  mixed = mixed[:, :rows]
  if append:
    return mixed, jax.freeze(keys), jax.freeze(values)
  return mixed, k_BGTC, v_BGTC


def _join(out_NBGRC, lse_NBGR, *, Q, U, S):
  """One result of the splits', weighed by their share of the softmax."""
  N, B, G, _, C = out_NBGRC.shape
  # Unrolled, it is elementwise: one fusion, where a reduction takes three.
  lse = [lse_NBGR[i][..., None] for i in range(N)]
  top = functools.reduce(jnp.maximum, lse)
  weights = [jnp.exp2(x - top) for x in lse]
  mixed = sum(w * out_NBGRC[i].astype(_F32) for i, w in enumerate(weights))
  mixed = (mixed / sum(weights)).astype(out_NBGRC.dtype)
  mixed = mixed[:, :, : U * S].reshape(B, G, U, S, C)[:, :, :, :Q]
  return mixed.transpose(0, 3, 1, 2, 4).reshape(B, Q, -1)


def _body(
  qkv, keys, values, lengths, cos, sin, *refs,
  rows, Q, G, U, C, splits, eps, causal, append, normed,
):  # fmt: skip
  refs = list(refs)
  norms = [refs.pop(0) for _ in range(2 * normed)]
  out = refs.pop(0)
  lse = refs.pop(0) if splits > 1 else None
  (
    q_s, k_s, v_s, k_new, v_new, (cos_s, sin_s), norm_s,
    lse_s, key_buf, value_buf, loaded, arrived,
  ) = refs  # fmt: skip
  group, split = lax.axis_index('group'), lax.axis_index('split')
  b, g = lax.div(group, jnp.int32(G)), lax.rem(group, jnp.int32(G))
  half, S, J = C // 2, _slab(Q), U + 2
  dtype = q_s[0].dtype
  # A start that is not static lets a copy reach past the array: what is
  # missing is read as zeros, and not written.
  start = split * 0

  def fetch(step, slot):
    first = pl.multiple_of((split + step * splits) * TILE, TILE)
    tile = pl.ds(first, TILE)
    for h in range(2):
      plgpu.copy_gmem_to_smem(
        keys.at[b, g, tile, pl.ds(h * half, half)],
        key_buf[h].at[slot],
        arrived.at[slot],
      )
    plgpu.copy_gmem_to_smem(
      values.at[b, g, tile], value_buf.at[slot], arrived.at[slot]
    )

  # Whatever the length: reading it first would cost a trip to memory.
  fetch(jnp.int32(0), 0)

  def columns(j, first=0, size=C):
    return pl.ds(g * (J * C) + j * C + first, size)

  for h in range(2):
    for u in range(U):
      plgpu.copy_gmem_to_smem(
        qkv.at[b, pl.ds(start, S), columns(u, h * half, half)],
        q_s[h].at[pl.ds(u * S, S)],
        loaded,
      )
    plgpu.copy_gmem_to_smem(
      qkv.at[b, pl.ds(start, TILE), columns(U, h * half, half)],
      k_s[h],
      loaded,
    )
    plgpu.copy_gmem_to_smem(
      qkv.at[b, pl.ds(start, S), columns(U + 1, h * half, half)],
      v_new[h],
      loaded,
    )
  plgpu.copy_gmem_to_smem(
    qkv.at[b, pl.ds(start, TILE), columns(U + 1)], v_s, loaded
  )
  for table, into in ((cos, cos_s), (sin, sin_s)):
    plgpu.copy_gmem_to_smem(table.at[b, pl.ds(start, TILE)], into, loaded)
  for i, into in enumerate(norm_s[: 4 * normed]):
    plgpu.copy_gmem_to_smem(
      norms[i // 2].at[pl.ds(i % 2 * half, half)], into, loaded
    )

  length = lengths[b]
  tiles = lax.div(length + (TILE - 1), jnp.int32(TILE))
  steps = lax.div(tiles - split + (splits - 1), jnp.int32(splits))
  steps = jnp.maximum(steps, 1)  # the one on its way
  for i in range(1, _STAGES):
    pl.when(i < steps)(lambda i=i: fetch(jnp.int32(i), i))
  plgpu.barrier_wait(loaded)

  turn = load(cos_s, WGMMA), load(sin_s, WGMMA)

  def rotated(halves, weights):
    left, right = (load(x, WGMMA).astype(_F32) for x in halves)
    if weights:
      square = (left * left + right * right).sum(axis=1)
      scale = lax.rsqrt(square * (1.0 / C) + eps)
      scale = lax.broadcast_in_dim(scale, left.shape, [0])
      by_left, by_right = (
        lax.broadcast_in_dim(
          load(w, WGMMA.reduce(0), optimized=False).astype(_F32),
          left.shape,
          [1],
        )
        for w in weights
      )
      left, right = left * scale * by_left, right * scale * by_right
    c, s = turn
    return (
      (left * c - right * s).astype(dtype),
      (right * c + left * s).astype(dtype),
    )

  q = rotated(q_s, norm_s[:2] if normed else ())
  k = rotated(k_s, norm_s[2:] if normed else ())
  for h in range(2):
    q_s[h][...] = q[h]
    k_s[h][...] = k[h]
  plgpu.commit_smem()
  if append:

    @pl.when(split == 0)
    def _():
      behind = pl.ds(length, Q)
      for h in range(2):
        k_new[h][...] = k[h]
      plgpu.commit_smem()
      for h in range(2):
        columns_of = (b, g, behind, pl.ds(h * half, half))
        for new, cache in ((k_new, keys), (v_new, values)):
          plgpu.copy_smem_to_gmem(new[h].at[pl.ds(0, Q)], cache.at[columns_of])

  scale = C**-0.5 * _LOG2E
  at_row, at_col = (
    plgpu.broadcasted_iota(jnp.int32, (TILE, TILE), i, layout=WGMMA)
    for i in range(2)
  )

  def attend(carry, k_halves, v_ref, seen):
    mixed, top, total = carry

    def scores(ref):
      for h in range(2):
        plgpu.wgmma(ref, q_s[h], k_halves[h].transpose((1, 0)))
      return ref[...]

    x = pl.run_scoped(scores, plgpu.ACC((TILE, TILE), _F32)) * scale
    x = jnp.where(seen, x, -jnp.inf)
    new_top = jnp.maximum(top, x.max(axis=1))
    finite = jnp.where(new_top == -jnp.inf, 0.0, new_top)
    fade = jnp.exp2(top - finite)
    p = jnp.exp2(x - lax.broadcast_in_dim(finite, x.shape, [0]))
    total = total * fade + p.sum(axis=1)
    p = p.astype(dtype)

    def weighted(ref):
      plgpu.wgmma(ref, p, v_ref)
      return ref[...]

    mixed = mixed * lax.broadcast_in_dim(fade, mixed.shape, [0])
    mixed += pl.run_scoped(weighted, plgpu.ACC((TILE, C), _F32))
    return mixed, new_top, total

  def full(shape, value, layout):
    return plgpu.layout_cast(jnp.full(shape, value, _F32), layout)

  carry = (
    full((TILE, C), 0.0, WGMMA),
    full((TILE,), -jnp.inf, WGMMA.reduce(1)),
    full((TILE,), 0.0, WGMMA.reduce(1)),
  )
  seen = at_col < rows
  if causal:
    seen = seen & (at_col <= lax.rem(at_row, jnp.int32(S)))
  # The block itself, in one of the splits.
  mine = jnp.where(split == 0, 1, 0)
  carry = lax.fori_loop(
    jnp.int32(0), mine, lambda _, carry: attend(carry, k_s, v_s, seen), carry
  )

  def step(i, carry):
    slot = lax.rem(i, jnp.int32(_STAGES))
    plgpu.barrier_wait(arrived.at[slot])
    here = (split + i * splits) * TILE

    @pl.when(here + TILE > length)
    def _():
      # What lies past the length may be anything, and 0 x NaN is NaN.
      v = load(value_buf.at[slot], WGMMA)
      row = plgpu.broadcasted_iota(jnp.int32, v.shape, 0, layout=WGMMA)
      value_buf.at[slot][...] = jnp.where(
        row + here < length, v, jnp.zeros_like(v)
      )
      plgpu.commit_smem()

    carry = attend(
      carry,
      [x.at[slot] for x in key_buf],
      value_buf.at[slot],
      at_col + here < length,
    )
    pl.when(i + _STAGES < steps)(lambda: fetch(i + _STAGES, slot))
    return carry

  mixed, top, total = lax.fori_loop(jnp.int32(0), steps, step, carry)
  safe = jnp.where(total > 0, total, 1.0)
  v_s[...] = (mixed / lax.broadcast_in_dim(safe, mixed.shape, [0])).astype(
    dtype
  )
  if splits > 1:
    lse_s[...] = top + jnp.log(total) * _LOG2E
  plgpu.commit_smem()
  if splits > 1:
    plgpu.copy_smem_to_gmem(v_s, out.at[split, b, g])
    plgpu.copy_smem_to_gmem(lse_s, lse.at[split, b, g])
  else:
    for u in range(U):
      to = (b, pl.ds(start, S), pl.ds((g * U + u) * C, C))
      plgpu.copy_smem_to_gmem(v_s.at[pl.ds(u * S, S)], out.at[to])
  plgpu.wait_smem_to_gmem(0)
