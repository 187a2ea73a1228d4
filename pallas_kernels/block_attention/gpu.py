"""Block attention for Hopper, in Mosaic GPU.

One thread block takes one group of heads of one request, and every n-th tile
of its context, where n splits share it. The 64 rows of a tensor-core tile are
the group's heads x query rows. It norms and rotates queries and the block's
keys itself, appends the block to the cache, and reads context rows up to the
valid length only, a few tiles of 64 in flight. Splits are joined by their
log-sum-exp.

With fewer groups than multiprocessors, splits of the context keep all of them
busy, and the first tile is on its way from the start. With more (`crowded`),
what hides a wait is another thread block on the same multiprocessor: tiles of
the context take the memory that the block's own rows needed before, so that
two or three fit, and only contexts that are long are split.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.block_attention.config import Plan
from pallas_kernels.compat import load
from pallas_kernels.hopper import WGMMA, tiled

TILE = 64  # rows of a tensor-core tile, and context rows of a step
_LOG2E = math.log2(math.e)
_F32 = jnp.float32


def _slab(rows: int) -> int:
  """Rows that the queries of one head take in a tile: whole swizzle rows."""
  return -(-rows // 8) * 8


def fits(heads: int, rows: int, head_dim: int) -> bool:
  """Whether `heads` (of a group) x `rows` queries fit one tile."""
  return heads * _slab(rows) <= TILE and head_dim in (64, 128)


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
  plan = Plan.of(B * G, T)
  dtype, half = k_BGTC.dtype, C // 2
  body = functools.partial(
    _body, rows=rows, Q=Q, G=G, U=U, C=C, plan=plan, eps=eps, causal=causal,
    append=append, normed=norms is not None,
  )  # fmt: skip
  shape = (B, Q, G * U * C)
  out_type = [jax.ShapeDtypeStruct(shape, dtype)]
  if plan.splits > 1:
    out_type = [
      jax.ShapeDtypeStruct((plan.splits, B, G, TILE, C), dtype),
      jax.ShapeDtypeStruct((plan.splits, B, G, TILE), _F32),
    ]
  halves = (tiled((TILE, half), dtype),) * 2
  own = [halves, tiled((TILE, C), dtype)]  # keys and values of the block
  turn = [(tiled((TILE, half), _F32),) * 2]  # cosine, sine
  # What is appended: a row of the cache starts anywhere, so not swizzled.
  keys_new = [(plgpu.SMEM((TILE, half), dtype),) * 2]
  values_new = (plgpu.SMEM((S, half), dtype),) * 2
  context = [
    (tiled((plan.stages, TILE, half), dtype),) * 2,
    tiled((plan.stages, TILE, C), dtype),
  ]
  result = [tiled((TILE, C), dtype)]
  # Of what shares memory, each is done with before the next is begun.
  if plan.crowded:
    # As one: unions do not nest.
    shared = [plgpu.RefUnion(own + turn + keys_new, context, result)]
  else:
    shared = [
      plgpu.RefUnion(own, result),
      plgpu.RefUnion(turn, keys_new),
      context,
    ]
  scratch = [
    shared, values_new, halves,  # queries
    (plgpu.SMEM((half,), dtype),) * 4, plgpu.SMEM((TILE,), _F32),
    plgpu.Barrier(num_arrivals=2 * U + 7 + 4 * (norms is not None)),
    plgpu.Barrier(num_arrivals=3, num_barriers=plan.stages),
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
    mesh=plgpu.Mesh(grid=(B * G, plan.splits), grid_names=('group', 'split')),
    compiler_params=plgpu.CompilerParams(approx_math=True),
    name='block_attention',
  )(
    qkv_BQJ, keys, values, length_B, table(cos_BQC), table(sin_BQC),
    *(norms or ()),
  )  # fmt: skip
  mixed = out[0] if plan.splits == 1 else _join(*out, Q=Q, U=U, S=S)
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
  mixed = sum(
    # A split that had nothing to do has written nothing.
    jnp.where(w > 0, w * out_NBGRC[i].astype(_F32), 0.0)
    for i, w in enumerate(weights)
  )
  mixed = (mixed / sum(weights)).astype(out_NBGRC.dtype)
  mixed = mixed[:, :, : U * S].reshape(B, G, U, S, C)[:, :, :, :Q]
  return mixed.transpose(0, 3, 1, 2, 4).reshape(B, Q, -1)


def _full(shape, value, layout):
  return plgpu.layout_cast(jnp.full(shape, value, _F32), layout)


def _body(qkv, keys, values, lengths, cos, sin, *refs, plan, normed, **how):
  """The part of a thread block, if its group's context is long enough."""
  refs = list(refs)
  norms = [refs.pop(0) for _ in range(2 * normed)]
  outs = [refs.pop(0) for _ in range(1 + (plan.splits > 1))]
  group, split = lax.axis_index('group'), lax.axis_index('split')
  at = lax.div(group, jnp.int32(how['G'])), lax.rem(group, jnp.int32(how['G']))
  part = functools.partial(
    _part, qkv, keys, values, lengths, cos, sin, norms, outs, *refs, at, split,
    plan=plan, **how,
  )  # fmt: skip
  if not plan.crowded or plan.splits == 1:
    part(plan.splits)
    return
  splits = lax.div(lengths[at[0]] + (plan.long - 1), jnp.int32(plan.long))
  splits = jnp.clip(splits, 1, plan.splits)
  pl.when(split < splits)(lambda: part(splits))

  @pl.when(split >= splits)
  def _():
    *_, lse_s, _, _ = refs
    lse_s[...] = _full((TILE,), -jnp.inf, WGMMA.reduce(1))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(lse_s, outs[1].at[split, *at])
    plgpu.wait_smem_to_gmem(0)


def _part(
  qkv, keys, values, lengths, cos, sin, norms, outs,
  shared, v_new, q_s, norm_s, lse_s, loaded, arrived, at, split, splits,
  *, plan, rows, Q, G, U, C, eps, causal, append,
):  # fmt: skip
  """Every `splits`-th tile of a group's context; the first part has its block,
  too."""
  (b, g), stages = at, plan.stages
  if plan.crowded:
    ((own, context, result),) = shared
    k_s, v_s, (cos_s, sin_s), k_new = own
  else:
    ((k_s, v_s), result), (((cos_s, sin_s),), (k_new,)), context = shared
  key_buf, value_buf = context
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

  if not plan.crowded:
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
  for i, into in enumerate(norm_s[: 2 * len(norms)]):
    plgpu.copy_gmem_to_smem(
      norms[i // 2].at[pl.ds(i % 2 * half, half)], into, loaded
    )

  length = lengths[b]
  tiles = lax.div(length + (TILE - 1), jnp.int32(TILE))
  steps = lax.div(tiles - split + (splits - 1), jnp.int32(splits))

  def fetch_first(begin):
    for i in range(begin, stages):
      pl.when(i < steps)(lambda i=i: fetch(jnp.int32(i), i))

  if not plan.crowded:
    steps = jnp.maximum(steps, 1)  # the one on its way
    fetch_first(1)
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

  q = rotated(q_s, norm_s[:2] if norms else ())
  k = rotated(k_s, norm_s[2:] if norms else ())
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

  per_row = WGMMA.reduce(1)
  carry = (
    _full((TILE, C), 0.0, WGMMA),
    _full((TILE,), -jnp.inf, per_row),
    _full((TILE,), 0.0, per_row),
  )
  seen = at_col < rows
  if causal:
    seen = seen & (at_col <= lax.rem(at_row, jnp.int32(S)))
  # The block itself, in one of the splits.
  mine = jnp.where(split == 0, 1, 0)
  carry = lax.fori_loop(
    jnp.int32(0), mine, lambda _, carry: attend(carry, k_s, v_s, seen), carry
  )
  if plan.crowded:
    # The memory of the block is free, and its rows, which a tile of the
    # context may have at its end, are written.
    plgpu.wait_smem_to_gmem(0)
    plgpu.commit_smem()
    fetch_first(0)

  def step(i, carry):
    slot = lax.rem(i, jnp.int32(stages))
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
    pl.when(i + stages < steps)(lambda: fetch(i + stages, slot))
    return carry

  mixed, top, total = lax.fori_loop(jnp.int32(0), steps, step, carry)
  if not plan.crowded:
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
  plgpu.commit_smem()  # nobody reads what the result takes the memory of
  safe = jnp.where(total > 0, total, 1.0)
  (mixed_s,) = result
  mixed_s[...] = (mixed / lax.broadcast_in_dim(safe, mixed.shape, [0])).astype(
    dtype
  )
  if plan.splits > 1:
    lse_s[...] = top + jnp.log(total) * _LOG2E
  plgpu.commit_smem()
  if plan.splits > 1:
    plgpu.copy_smem_to_gmem(mixed_s, outs[0].at[split, b, g])
    plgpu.copy_smem_to_gmem(lse_s, outs[1].at[split, b, g])
  else:
    for u in range(U):
      to = (b, pl.ds(start, S), pl.ds((g * U + u) * C, C))
      plgpu.copy_smem_to_gmem(mixed_s.at[pl.ds(u * S, S)], outs[0].at[to])
  plgpu.wait_smem_to_gmem(0)
