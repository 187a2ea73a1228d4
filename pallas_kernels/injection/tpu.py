"""The injection for TPUs, in Pallas: one launch.

A core takes the steps of the grid one after another, so what spans the grid
needs no more than scratch memory: first the tiles of the readout, then those
of the gate, then those of the write, each read while the one before it is
multiplied. Block indices stay where they are outside of their phase, so
nothing is read twice.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.injection.config import TpuConfig

_F32 = jnp.float32
_RESIDENT = 4 * 2**20  # bytes of h that stay in the vector memory


def injection(
  h_BKD: jax.Array,
  anchor_BR: jax.Array,
  readout_RD: jax.Array,
  receiver_MR: jax.Array,
  predecessor_MR: jax.Array,
  message_MR: jax.Array,
  bias_M: jax.Array,
  write_DM: jax.Array,
  config: TpuConfig,
) -> jax.Array:
  """See `api.injection`; shapes are checked there."""
  B, K, D = h_BKD.shape
  weights = (
    readout_RD, receiver_MR, predecessor_MR, message_MR, bias_M, write_DM
  )  # fmt: skip
  most = max(1, _RESIDENT // (K * D * h_BKD.dtype.itemsize))
  if most < B:
    parts = [
      injection(h_BKD[i : i + most], anchor_BR[i : i + most], *weights, config)
      for i in range(0, B, most)
    ]
    return jnp.concatenate(parts)
  (M, R), dtype = message_MR.shape, h_BKD.dtype
  N = B * K
  pad = ((0, -N % 16), (0, 0))  # whole tiles of either type
  h = jnp.pad(h_BKD.reshape(N, D), pad)
  anchor = jnp.pad(jnp.repeat(anchor_BR.astype(dtype), K, axis=0), pad)
  rows = len(h)
  tiles = config.readout, config.gate, config.write
  steps = [w // t for w, t in zip((R, M, D), tiles, strict=True)]
  first = [0, steps[0], steps[0] + steps[1]]

  def at(phase, axis):
    """Block index: that of the phase's step, clamped to the phase."""

    def index(i):
      step = jnp.clip(i - first[phase], 0, steps[phase] - 1)
      return (step, 0) if axis == 0 else (0, step)

    return index

  whole = pl.BlockSpec((rows, D), lambda i: (0, 0))
  gate = pl.BlockSpec((config.gate, R), at(1, 0))
  out = pl.pallas_call(
    functools.partial(_body, slots=K, steps=steps, tiles=tiles),
    out_shape=jax.ShapeDtypeStruct((rows, D), dtype),
    grid=(sum(steps),),
    in_specs=[
      whole,
      pl.BlockSpec((rows, config.readout), at(0, 1)),
      pl.BlockSpec((config.readout, D), at(0, 0)),
      gate,
      gate,
      gate,
      pl.BlockSpec((1, config.gate), at(1, 1)),
      pl.BlockSpec((config.write, M), at(2, 0)),
    ],
    out_specs=pl.BlockSpec((rows, config.write), at(2, 1)),
    scratch_shapes=[
      pltpu.VMEM((rows, R), dtype),
      pltpu.VMEM((rows, M), dtype),
      pltpu.VMEM((rows, 1), _F32),
      pltpu.VMEM((rows, 1), _F32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('arbitrary',),
      vmem_limit_bytes=config.vmem_bytes,
    ),
    name='injection',
  )(
    h, anchor, readout_RD, receiver_MR, predecessor_MR, message_MR,
    bias_M[None], write_DM,
  )  # fmt: skip
  return out[:N].reshape(h_BKD.shape)


def _product(x, weight):
  return lax.dot_general(
    x[...], weight[...], (((1,), (1,)), ((), ())), preferred_element_type=_F32,
    precision=None if x.dtype == jnp.bfloat16 else lax.Precision.HIGHEST,
  )  # fmt: skip


def _square(x):
  x = x.astype(_F32)
  return jnp.sum(x * x, axis=1, keepdims=True)


def _body(
  h, anchor, readout, receiver, predecessor, message, bias, write,
  out, y, q, y_square, h_square,
  *, slots, steps, tiles,
):  # fmt: skip
  i = pl.program_id(0)
  rows = h.shape[0]
  slot = lax.rem(
    lax.broadcasted_iota(jnp.int32, (rows, 1), 0), jnp.int32(slots)
  )
  is_anchor = slot == 0

  def columns(phase, step):
    if steps[phase] == 1:
      return slice(None)  # of any width
    tile = tiles[phase]
    return pl.ds(pl.multiple_of(step * tile, tile), tile)

  @pl.when(i == 0)
  def _():
    y_square[...] = jnp.zeros_like(y_square)
    h_square[...] = sum(  # of slices, for the sake of its temporaries
      _square(h[:, j : j + 512]) for j in range(0, h.shape[1], 512)
    )

  @pl.when(i < steps[0])
  def _():
    part = _product(h, readout)
    part = jnp.where(is_anchor, anchor[...].astype(_F32), part)
    y_square[...] += _square(part)
    y[:, columns(0, i)] = part.astype(y.dtype)

  @pl.when((i >= steps[0]) & (i < steps[0] + steps[1]))
  def _():
    scale = y.shape[1] ** 0.5 / jnp.maximum(jnp.sqrt(y_square[...]), 1e-12)
    # The anchor's code is no feature: it is taken as it is.
    before = jnp.where(is_anchor, 1.0, scale)
    gated, told = (
      pltpu.roll(_product(y, x) * before, 1, 0) for x in (predecessor, message)
    )
    x = _product(y, receiver) * scale + gated
    x = x + bias[...].astype(_F32)
    x = jnp.where(is_anchor, 0.0, jax.nn.sigmoid(x) * told)
    q[:, columns(1, i - steps[0])] = x.astype(q.dtype)

  @pl.when(i >= steps[0] + steps[1])
  def _():
    before = h[:, columns(2, i - steps[0] - steps[1])].astype(_F32)
    scale = jnp.sqrt(h_square[...]) * h.shape[1] ** -0.5
    written = scale * _product(q, write)
    out[...] = (before + written).astype(out.dtype)
