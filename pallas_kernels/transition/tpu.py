"""Choosing a path through candidates for TPUs, in Pallas: one launch.

A step of the grid takes a request, slot after slot. What is chosen stays a
vector of one entry, so nothing waits for the scalar core.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

_F32 = jnp.float32
_LANES = 128


def transition(
  message_BSNM: jax.Array,
  write_BSNM: jax.Array,
  straight_BSN: jax.Array,
  scale_BS: jax.Array,
  factor_BSN: jax.Array | None,
  noise_BSN: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
  """See `api.transition`; shapes are checked there. No scores without noise."""
  B, S, N, M = message_BSNM.shape
  sampled = noise_BSN is not None
  given = [
    message_BSNM.reshape(B, S * N, M),
    write_BSNM.reshape(B, S * N, M),
    straight_BSN,
    scale_BS[..., None],
  ]
  if sampled:
    given += [factor_BSN.swapaxes(1, 2), noise_BSN]  # rows lie along lanes
  given = [x.astype(_F32) for x in given]
  out = [jax.ShapeDtypeStruct((B, 1, _LANES), jnp.int32)]
  if sampled:
    out.append(jax.ShapeDtypeStruct((B, S, N, N), _F32))

  def of_request(x):
    return pl.BlockSpec(
      (1, *x.shape[1:]), lambda i: (i, *(0,) * (len(x.shape) - 1))
    )

  index, *scores = pl.pallas_call(
    functools.partial(_body, sampled=sampled),
    out_shape=out,
    grid=(B,),
    in_specs=[of_request(x) for x in given],
    out_specs=[of_request(x) for x in out],
    name='transition',
  )(*given)
  return index[:, 0, :S], scores[0] if sampled else None


def _body(message, write, straight, scale, *refs, sampled):
  factor, noise = refs[:2] if sampled else (None, None)
  index, *scores = refs[2 * sampled :]
  slots, count = straight.shape[1:]
  row = lax.broadcasted_iota(jnp.int32, (count, 1), 0).astype(_F32)
  column = lax.broadcasted_iota(jnp.int32, (count, count), 1).astype(_F32)
  lane = lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)
  before = jnp.zeros((1, 1), _F32)
  path = jnp.zeros((1, _LANES), _F32)
  for slot in range(slots):
    rows = slice(slot * count, (slot + 1) * count)
    through = lax.dot_general(
      message[0, rows], write[0, rows], (((1,), (1,)), ((), ())),
      preferred_element_type=_F32, precision=lax.Precision.HIGHEST,
    )  # fmt: skip
    x = straight[0, slot : slot + 1] + scale[0, slot : slot + 1] * through
    if sampled:
      x = x * factor[0, :, slot : slot + 1]
      scores[0][0, slot] = x
      x = x + noise[0, slot : slot + 1]
    best = jnp.max(x, axis=1, keepdims=True)
    # Of equals the first.
    choice = jnp.min(
      jnp.where(x == best, column, float(count)), axis=1, keepdims=True
    )
    before = jnp.sum(
      jnp.where(row == before, choice, 0.0), axis=0, keepdims=True
    )
    path = jnp.where(lane == slot, before, path)
  index[0] = path.astype(jnp.int32)
