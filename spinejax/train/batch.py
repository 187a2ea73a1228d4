"""Training blocks cut from a sequence: anchors, labels, weights.

Many anchors a sequence are trained at once; each is a block
[x_a, MASK x S] that sees the context rows t < a and itself.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """One batch.

  Attributes:
    tokens_BT: token ids.
    loss_mask_BT: 1 where a token is supervised.
    features_BTP: tapped target states, row t of token t.
    teacher_BTD: the target's final-normed states; row t predicts token t + 1.
    anchors_BA: positions of the anchors.
    keep_BA: whether an anchor is real (a short sequence has fewer).
  """

  tokens_BT: jax.Array
  loss_mask_BT: jax.Array
  features_BTP: jax.Array
  teacher_BTD: jax.Array
  anchors_BA: jax.Array
  keep_BA: jax.Array


def loss_mask(answer_B, length_B, width: int) -> jax.Array:
  """float32 [B, T]: the answer, and the token before it.

  Decoding starts with the last prompt token as its first anchor, so that token
  is an anchor in training too.
  """
  at_T = jnp.arange(width)
  inside = at_T < length_B[:, None]
  return (inside & (at_T >= answer_B[:, None] - 1)).astype(jnp.float32)


def sample_anchors(
  key: jax.Array, loss_mask_BT: Float[Array, 'B T'], count: int
) -> tuple[Int[Array, 'B A'], jax.Array]:
  """Distinct random anchors whose successor is supervised too.

  Returns:
    Positions, ascending, and which of them are real.
  """
  mask = loss_mask_BT > 0
  fit_BT = mask & jnp.roll(mask, -1, axis=1).at[:, -1].set(False)
  draw_BT = jax.random.uniform(key, fit_BT.shape)
  _, at_BA = jax.lax.top_k(jnp.where(fit_BT, draw_BT, -1.0), count)
  keep_BA = jnp.take_along_axis(fit_BT, at_BA, axis=1)
  at_BA = jnp.where(keep_BA, at_BA, 0)
  order = jnp.argsort(jnp.where(keep_BA, at_BA, fit_BT.shape[1]), axis=1)
  return (
    jnp.take_along_axis(at_BA, order, axis=1),
    jnp.take_along_axis(keep_BA, order, axis=1),
  )


def gather_rows(x_BT: jax.Array, at: jax.Array) -> jax.Array:
  """x[b, at[b, ...]] for x [B, T, ...]; indices past the end are clamped."""
  return jax.vmap(lambda x, i: jnp.take(x, i, axis=0, mode='clip'))(x_BT, at)


def label_positions(batch: Batch, slots: int) -> Int[Array, 'B A S']:
  """Position a + j of the token that slot j = 1..S predicts."""
  return batch.anchors_BA[..., None] + jnp.arange(1, slots + 1)


def supervised(
  batch: Batch, slots: int, *, cumulative: bool
) -> Float[Array, 'B A S']:
  """1 where a slot's label exists and is supervised.

  With `cumulative`, a block ends at its first unsupervised slot (DSpine,
  DSpark); without, each slot stands for itself (DFlash).
  """
  at = label_positions(batch, slots)
  inside = at < batch.tokens_BT.shape[1]
  mask = inside & (gather_rows(batch.loss_mask_BT, at) > 0)
  mask = (mask & batch.keep_BA[..., None]).astype(jnp.float32)
  return jnp.cumprod(mask, axis=-1) if cumulative else mask


def decay(slots: int, gamma: float | None) -> jax.Array:
  """exp(-(j - 1) / gamma) for slots j = 1..S; ones without gamma."""
  if gamma is None:
    return jnp.ones((slots,), jnp.float32)
  return jnp.exp(-jnp.arange(slots, dtype=jnp.float32) / gamma)
