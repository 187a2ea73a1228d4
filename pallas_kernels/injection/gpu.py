"""The injection for Hopper, in Mosaic GPU: three launches.

Two dependencies span the grid: a feature's norm needs all of W_R h, and the
write needs all of the gated message. So

  readout  y = W_R h, with the anchor's code in the place of slot 0, whose own
           feature nothing reads; y once more a row further down, where it is
           read as the predecessor's; and squares of y and h, by tile
  gate     q = sigmoid(W_recv f + W_pred u + bias) * W_msg u, where f and u are
           y and the shifted y, scaled: products are scaled, not what they take
  write    h + |h| / sqrt(D) W_O q

Rows are the 64 rows of a tensor-core tile, tiles of weights its columns. With
`overlap` a launch begins while the one before it runs, and reads its weights;
its products wait.
"""

import functools
import math

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
  tiled,
)
from pallas_kernels.injection.config import Config, Launch

_F32 = jnp.float32
_SLICE = 64  # columns of h whose squares are summed at once
# Room for rows that are stored one further down, in whole swizzle rows.
_SHIFT = 8


def chunk_of(rows: int, slots: int) -> int | None:
  """Rows of a chunk: whole blocks and whole swizzle rows; None if there is
  no such number up to 64 and the rows are more."""
  if rows <= ROWS:
    return -(-rows // 8) * 8
  whole = math.lcm(8, slots)
  return None if whole > ROWS else ROWS // whole * whole


def injection(
  h_BKD: jax.Array,
  anchor_BR: jax.Array,
  readout_RD: jax.Array,
  receiver_MR: jax.Array,
  predecessor_MR: jax.Array,
  message_MR: jax.Array,
  bias_M: jax.Array,
  write_DM: jax.Array,
  config: Config,
) -> jax.Array:
  """See `api.injection`; shapes are checked there."""
  B, K, D = h_BKD.shape
  (M, R), dtype, N = message_MR.shape, h_BKD.dtype, B * K
  h = h_BKD.reshape(N, D)
  if N > 8:  # a copy takes whole swizzle rows
    h = jnp.pad(h, ((0, -N % 8), (0, 0)))
  anchor = jnp.repeat(anchor_BR.astype(dtype), K, axis=0)
  chunk = chunk_of(N, K)
  chunks = -(-N // chunk)
  anchor = jnp.pad(anchor, ((0, chunks * chunk - N), (0, 0)))
  gates = receiver_MR, predecessor_MR, message_MR
  launch = functools.partial(
    _launch, chunks=chunks, chunk=chunk, slots=K, overlap=config.overlap
  )
  tiles = R // config.readout.tile
  if tiles < 2:  # squares of a single tile would start at no whole 16 bytes
    raise ValueError(
      f'readout.tile = {config.readout.tile}, expected at most {R // 2}'
    )
  # Of y, of y a row further down, and of h. A copy of them starts at a whole
  # 16 bytes: it is in shared memory that they are shifted.
  squares = jax.ShapeDtypeStruct((tiles, chunks, 3, ROWS + _SHIFT), _F32)
  rows = chunks * chunk
  y, u, q = (
    jax.ShapeDtypeStruct(shape, dtype)
    for shape in ((rows, R), (rows + _SHIFT, R), (rows, M))
  )
  # What the later launches read early has to be there when the first begins.
  behind = (*gates, write_DM) if config.overlap else ()
  slices = -(-D // (_SLICE * tiles))
  y, u, squares = launch(
    functools.partial(_readout, behind=len(behind), slices=slices),
    'injection_readout', config.readout, R,
    (y, u, squares),
    [
      tiled((slices, ROWS, _SLICE), dtype),
      plgpu.SMEM((ROWS, config.readout.tile), dtype),
      plgpu.SMEM((ROWS, config.readout.tile), dtype),
      plgpu.SMEM((3, ROWS + _SHIFT), _F32),
      plgpu.Barrier(num_arrivals=slices + 1),
    ],
  )(h, readout_RD, anchor, *behind)  # fmt: skip
  q = launch(
    _gate, 'injection_gate', config.gate, M, q,
    [
      plgpu.SMEM((tiles, ROWS), _F32),
      plgpu.SMEM((tiles, ROWS), _F32),
      plgpu.SMEM((config.gate.tile,), bias_M.dtype),
      plgpu.SMEM((ROWS, config.gate.tile), dtype),
      plgpu.Barrier(num_arrivals=3),
    ],
  )(y, u, *gates, bias_M, squares)  # fmt: skip
  out = launch(
    _write, 'injection_write', config.write, D,
    jax.ShapeDtypeStruct(h.shape, dtype),
    [
      plgpu.SMEM((tiles, ROWS), _F32),
      plgpu.SMEM((ROWS, config.write.tile), dtype),
      plgpu.SMEM((ROWS, config.write.tile), dtype),
      plgpu.Barrier(num_arrivals=2),
    ],
  )(q, write_DM, h, squares)  # fmt: skip
  return out[:N].reshape(h_BKD.shape)


def _launch(
  body, name, launch: Launch, width, out_type, scratch,
  *, chunks, chunk, slots, overlap,
):  # fmt: skip
  return plgpu.kernel(
    functools.partial(
      body, launch=launch, chunk=chunk, slots=slots, overlap=overlap
    ),
    out_type=out_type,
    grid=(width // launch.tile, chunks),
    grid_names=('tile', 'chunk'),
    scratch_types=scratch,
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )


def _place(launch, chunk):
  """The tile's and the chunk's index, and the first column and row."""
  tile, at = lax.axis_index('tile'), lax.axis_index('chunk')
  return tile, at, tile * launch.tile, pl.multiple_of(at * chunk, 8)


def _is_anchor(shape, slots):
  """Whether a row is slot 0. A chunk starts with a block."""
  row = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=WGMMA)
  return lax.rem(row, jnp.int32(slots)) == 0


def _by_row(x_N, shape):
  return lax.broadcast_in_dim(x_N, shape, [0])


def _norm(squares):
  """Square root of the sum over tiles, one value a row."""
  total = load(squares.at[0], PER_ROW, optimized=False)
  for i in range(1, squares.shape[0]):
    total += load(squares.at[i], PER_ROW, optimized=False)
  return jnp.sqrt(total)


def _store(staged, out, first_row, first, chunk):
  """Writes the rows of a chunk; those behind the array are dropped."""
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(
    staged.at[pl.ds(0, chunk)],
    out.at[pl.ds(first_row, chunk), pl.ds(first, staged.shape[1])],
  )
  plgpu.wait_smem_to_gmem(0)


def _readout(
  h, readout, anchor, *refs, behind, slices, launch, chunk, slots, overlap
):
  (
    y, u, squares,
    h_s, anchor_s, y_s, squares_s, loaded,
  ) = refs[behind:]  # fmt: skip
  tile, at, first, row = _place(launch, chunk)
  if overlap:
    plgpu.griddepcontrol_launch_dependents()
    # It may have begun early itself.
    plgpu.griddepcontrol_wait()
  plgpu.copy_gmem_to_smem(
    anchor.at[pl.ds(row, chunk), pl.ds(first, launch.tile)],
    anchor_s.at[pl.ds(0, chunk)],
    loaded,
  )
  # Squares of h are shared among the tiles, by slices of columns.
  for i in range(slices):
    column = pl.multiple_of((tile * slices + i) * _SLICE, _SLICE)
    plgpu.copy_gmem_to_smem(
      h.at[pl.ds(row, chunk), pl.ds(column, _SLICE)],
      h_s.at[i, pl.ds(0, chunk)],
      loaded,
    )
  (out,) = products(
    [
      Operand(h, row, chunk, ROWS),
      Operand(readout, first, launch.tile, launch.tile),
    ],
    [(0, 1)],
    step=launch.step,
    stages=launch.stages,
  )
  plgpu.barrier_wait(loaded)
  code = load(anchor_s, WGMMA, optimized=False).astype(_F32)
  is_anchor = _is_anchor(out.shape, slots)
  # The anchor's code is no feature, and is taken as it is: squares that sum to
  # R scale it by 1.
  square = jnp.where(is_anchor, 1.0, out * out)
  square = square.sum(axis=1)
  squares_s.at[0, pl.ds(0, ROWS)][...] = square
  squares_s.at[1, pl.ds(1, ROWS)][...] = square
  out = jnp.where(is_anchor, code, out)
  y_s[...] = out.astype(y.dtype)
  total = None
  for i in range(slices):
    part = load(h_s.at[i], WGMMA).astype(_F32)
    part = (part * part).sum(axis=1)
    total = part if total is None else total + part
  squares_s.at[2, pl.ds(0, ROWS)][...] = total
  plgpu.commit_smem()
  plgpu.copy_smem_to_gmem(squares_s, squares.at[tile, at])
  # A chunk begins with an anchor, which has no predecessor: nothing reads what
  # the first of these rows lacks, or the last one adds.
  plgpu.copy_smem_to_gmem(
    y_s.at[pl.ds(0, chunk)],
    u.at[pl.ds(row + 1, chunk), pl.ds(first, launch.tile)],
  )
  _store(y_s, y, row, first, chunk)


def _gate(
  y, u, receiver, predecessor, message, bias, squares, q,
  y_square_s, u_square_s, bias_s, q_s, loaded,
  *, launch, chunk, slots, overlap,
):  # fmt: skip
  _, at, first, row = _place(launch, chunk)
  if overlap:
    plgpu.griddepcontrol_launch_dependents()

  def ready():
    if overlap:
      plgpu.griddepcontrol_wait()
    for which, into in enumerate((y_square_s, u_square_s)):
      plgpu.copy_gmem_to_smem(
        squares.at[:, at, which, pl.ds(0, ROWS)], into, loaded
      )
    plgpu.copy_gmem_to_smem(bias.at[pl.ds(first, launch.tile)], bias_s, loaded)

  weights = [
    Operand(x, first, launch.tile, launch.tile, early=True)
    for x in (receiver, predecessor, message)
  ]
  received, gated, told = products(
    [Operand(y, row, chunk, ROWS), Operand(u, row, chunk, ROWS), *weights],
    [(0, 2), (1, 3), (1, 4)],
    step=launch.step,
    stages=launch.stages,
    ready=ready,
  )
  plgpu.barrier_wait(loaded)
  shape = received.shape

  def scale(square_s):
    norm = jnp.maximum(_norm(square_s), 1e-12)
    return _by_row(y.shape[1] ** 0.5 / norm, shape)

  of_u = scale(u_square_s)
  bias = load(bias_s, PER_COLUMN, optimized=False).astype(_F32)
  bias = lax.broadcast_in_dim(bias, shape, [1])
  x = received * scale(y_square_s) + gated * of_u + bias
  out = told * of_u / (1.0 + jnp.exp(-x))
  # Nothing is written to slot 0, which has no predecessor.
  out = jnp.where(_is_anchor(shape, slots), 0.0, out)
  q_s[...] = out.astype(q.dtype)
  _store(q_s, q, row, first, chunk)


def _write(
  q, write, h, squares, out,
  square_s, h_s, out_s, loaded,
  *, launch, chunk, slots, overlap,
):  # fmt: skip
  del slots
  _, at, first, row = _place(launch, chunk)
  if overlap:
    plgpu.griddepcontrol_launch_dependents()

  def ready():
    if overlap:
      plgpu.griddepcontrol_wait()
    plgpu.copy_gmem_to_smem(
      squares.at[:, at, 2, pl.ds(0, ROWS)], square_s, loaded
    )
    plgpu.copy_gmem_to_smem(
      h.at[pl.ds(row, chunk), pl.ds(first, launch.tile)],
      h_s.at[pl.ds(0, chunk)],
      loaded,
    )

  (written,) = products(
    [
      Operand(q, row, chunk, ROWS),
      Operand(write, first, launch.tile, launch.tile, early=True),
    ],
    [(0, 1)],
    step=launch.step,
    stages=launch.stages,
    ready=ready,
  )
  plgpu.barrier_wait(loaded)
  scale = _norm(square_s) * h.shape[1] ** -0.5
  before = load(h_s, WGMMA, optimized=False).astype(_F32)
  # In slot 0 q is zero.
  after = before + _by_row(scale, written.shape) * written
  out_s[...] = after.astype(out.dtype)
  _store(out_s, out, row, first, chunk)
