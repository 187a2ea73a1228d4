"""Choosing a path through candidates for Hopper, in Mosaic GPU: one launch.

A thread block takes a request. The 64 rows and 64 columns of a tensor-core
tile are predecessors and candidates of 64 / N slots, of which the blocks on
the diagonal count. float32 is split into a bfloat16 and what it lacks, so a
product is three. When all slots' choices are in shared memory, the path is
read off, slot after slot.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compat import load
from pallas_kernels.hopper import (
  PER_COLUMN,
  PER_ROW,
  ROWS,
  WGMMA,
  Operand,
  products,
)
from pallas_kernels.transition.config import Config

_F32 = jnp.float32
_WIDE = 128  # the shortest vector that all threads hold a part of


def transition(
  message_BSNM: jax.Array,
  write_BSNM: jax.Array,
  straight_BSN: jax.Array,
  scale_BS: jax.Array,
  factor_BSN: jax.Array | None,
  noise_BSN: jax.Array | None,
  config: Config,
) -> tuple[jax.Array, jax.Array | None]:
  """See `api.transition`; shapes are checked there. No scores without noise."""
  B, S, N, M = message_BSNM.shape
  groups = -(-S * N // ROWS)
  more = groups * ROWS - S * N

  def flat(x_BSN):
    x = x_BSN.astype(_F32).reshape(B, S * N, *x_BSN.shape[3:])
    x = jnp.pad(x, ((0, 0), (0, more), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(B * groups, ROWS, *x.shape[2:])

  def split(x_BSNM):
    x = flat(x_BSNM).reshape(B * groups * ROWS, M)
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(_F32)).astype(jnp.bfloat16)

  scale_BSN = jnp.broadcast_to(scale_BS[..., None], (B, S, N))
  sampled = noise_BSN is not None
  by_column = [straight_BSN, scale_BSN, *([noise_BSN] if sampled else [])]
  by_row = [factor_BSN] if sampled else []
  vectors = [flat(x).reshape(B, groups, ROWS) for x in (*by_column, *by_row)]
  out_type = [jax.ShapeDtypeStruct((B, _WIDE), jnp.int32)]
  if sampled:
    out_type.append(jax.ShapeDtypeStruct((B * groups, ROWS, ROWS), _F32))
  index, *scores = plgpu.kernel(
    functools.partial(_body, slots=S, count=N, groups=groups, config=config),
    out_type=out_type,
    grid=(B,),
    grid_names=('request',),
    scratch_types=[
      plgpu.SMEM((len(vectors), groups, ROWS), _F32),
      plgpu.SMEM((groups * ROWS,), jnp.int32),
      plgpu.SMEM((_WIDE,), jnp.int32),
      plgpu.SMEM((ROWS, ROWS), _F32),
      plgpu.Barrier(num_arrivals=len(vectors)),
    ],
    kernel_name='transition',
  )(*split(message_BSNM), *split(write_BSNM), *vectors)
  index_BS = index[:, :S]
  if not sampled:
    return index_BS, None
  # The blocks on the diagonal.
  each = ROWS // N
  tiles = scores[0].reshape(B * groups, each, N, each, N)
  diagonal = jnp.stack([tiles[:, i, :, i] for i in range(each)], axis=1)
  return index_BS, diagonal.reshape(B, groups * each, N, N)[:, :S]


def _body(*refs, slots, count, groups, config):
  matrices, refs = refs[:4], refs[4:]
  *rest, vectors_s, choice_s, index_s, scores_s, loaded = refs
  sampled = len(rest) > 3
  vectors, (index, *scores) = (rest[:4], rest[4:]) if sampled else (
    rest[:2], rest[2:]
  )  # fmt: skip
  request = lax.axis_index('request')
  shape = (ROWS, ROWS)
  row, column = (
    plgpu.broadcasted_iota(jnp.int32, shape, i, layout=WGMMA) for i in range(2)
  )
  of_row = lax.div(row, jnp.int32(count))
  own = of_row == lax.div(column, jnp.int32(count))

  for i, vector in enumerate(vectors):
    plgpu.copy_gmem_to_smem(vector.at[request], vectors_s.at[i], loaded)
  plgpu.barrier_wait(loaded)

  def one(group, _):
    at = request * groups + group
    first = pl.multiple_of(at * ROWS, ROWS)
    parts = products(
      [Operand(x, first, ROWS, ROWS) for x in matrices],
      [(0, 2), (1, 2), (0, 3)],  # what both lack is less than float32 keeps
      step=config.step,
      stages=config.stages,
    )  # fmt: skip

    def vector(i, layout, axis):
      x = load(vectors_s.at[i, group], layout, optimized=False)
      return lax.broadcast_in_dim(x, shape, [axis])

    through = parts[0] + (parts[1] + parts[2])
    x = vector(0, PER_COLUMN, 1) + vector(1, PER_COLUMN, 1) * through
    if sampled:
      x = x * vector(3, PER_ROW, 0)
      scores_s[...] = x
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(scores_s, scores[0].at[at])
      x = x + vector(2, PER_COLUMN, 1)
    x = jnp.where(own, x, -jnp.inf)
    best = lax.broadcast_in_dim(x.max(axis=1), shape, [0])
    # Of equals the first: the largest of what falls from left to right.
    falling = (ROWS - column).astype(_F32)
    found = jnp.where(x == best, falling, 0.0).max(axis=1)
    chosen = (ROWS - found).astype(jnp.int32)
    choice_s[pl.ds(pl.multiple_of(group * ROWS, ROWS), ROWS)] = chosen
    plgpu.wait_smem_to_gmem(0)
    return ()

  lax.fori_loop(jnp.int32(0), jnp.int32(groups), one, ())
  plgpu.commit_smem()
  each = ROWS // count
  place = plgpu.broadcasted_iota(
    jnp.int32, (_WIDE,), 0, layout=plgpu.Layout.WG_STRIDED((_WIDE,), vec_size=1)
  )
  path = jnp.zeros_like(place)
  before = jnp.int32(0)
  for slot in range(slots):
    # A column of the slot's tile; its block begins where its rows do.
    before = choice_s[slot * count + before] - slot % each * count
    path = jnp.where(place == slot, before, path)
  index_s[...] = path
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(index_s, index.at[request])
  plgpu.wait_smem_to_gmem(0)
