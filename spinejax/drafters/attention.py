"""Attention of draft blocks over [context, own block]."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from pallas_kernels.block_attention.api import block_attention
from spinejax.target import layers as nn

Context = tuple[jax.Array, jax.Array]  # keys, values of one layer [B, G, T, C]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Place:
  """Where the blocks sit.

  Attributes:
    start_BA: absolute position of each anchor.
    visible_BA: context rows [0, visible) that the block may look at.
    decoding: one block a request (A = 1), and no gradient is taken.
  """

  start_BA: jax.Array
  visible_BA: jax.Array
  decoding: bool = dataclasses.field(default=False, metadata={'static': True})


def attend(
  cfg,
  index: int,
  norms: tuple[jax.Array, jax.Array] | None,
  qkv: jax.Array,
  rope: tuple[jax.Array, jax.Array],
  context: Context,
  place: Place,
) -> jax.Array:
  """Mixed values [B, A, K, H * C] of the blocks of draft layer `index`.

  Args:
    cfg: the drafter's `BackboneConfig`.
    norms: scales of the norms of queries and keys, or None.
    qkv: the layer's fused projection [B, A, K, G, J, C].
    rope: cosine and sine of the blocks' positions, [B, A, K, 1, C/2].
    context, place: what the blocks look at, and where they sit.
  """
  if place.decoding and cfg.window(index) is None:
    return _attend_once(cfg, index, norms, qkv, rope, context, place)
  q, k, v = nn.split_qkv(qkv, rope, norms, cfg.norm_eps)
  seen = _visible(cfg, index, qkv.shape[2], place, context[0].shape[2])
  how = _attend_fused if nn.has_flash(q) else attend_parts
  return how(q, k, v, *context, *seen)


def _attend_once(cfg, index, norms, qkv, rope, context, place):
  """Attention of one block a request: by a kernel, where there is one."""

  def otherwise(qkv, k_BGTC, v_BGTC, visible_B, rope, norms):
    del visible_B  # the mask has it
    q, k, v = (x[:, None] for x in nn.split_qkv(qkv, rope, norms, cfg.norm_eps))
    seen_BAKT, seen_KK = _visible(
      cfg, index, qkv.shape[1], place, k_BGTC.shape[2]
    )
    mixed = nn.over_prefix(
      functools.partial(attend_parts, q, k, v, seen_KK=seen_KK),
      k_BGTC, v_BGTC, seen_BAKT,
    )  # fmt: skip
    return mixed[:, 0], k_BGTC, v_BGTC

  mixed, _, _ = block_attention(
    otherwise, qkv[:, 0], *context, place.visible_BA[:, 0],
    jax.tree.map(lambda x: x[:, 0], rope), norms,
    eps=cfg.norm_eps, causal=cfg.is_causal(index), append=False,
  )  # fmt: skip
  return mixed[:, None]


def _visible(cfg, index, K, place, T):
  """Context [B, A, K, T] and block [K, K] visibility of one layer."""
  position_BAK = place.start_BA[..., None] + jnp.arange(K)
  at_T = jnp.arange(T)
  seen_BAKT = at_T < place.visible_BA[..., None, None]
  distance_KK = jnp.arange(K)[:, None] - jnp.arange(K)
  seen_KK = distance_KK >= 0 if cfg.is_causal(index) else jnp.ones((K, K), bool)
  window = cfg.window(index)
  if window is not None:
    seen_BAKT = seen_BAKT & (at_T > position_BAK[..., None] - window)
    seen_KK = seen_KK & (jnp.abs(distance_KK) < window)
  return jnp.broadcast_to(seen_BAKT, (*position_BAK.shape, T)), seen_KK


def _attend_fused(q, k, v, k_BGTC, v_BGTC, seen_BAKT, seen_KK):
  """`attend_parts` by cuDNN, whose scores are not written to memory.

  The blocks of a request are one sequence of queries; its keys are the context
  and all blocks, of which each sees itself.
  """
  B, A, K, _, _, C = q.shape
  keys, values = (
    jnp.concatenate([old.swapaxes(1, 2), x.reshape(B, A * K, -1, C)], axis=1)
    for old, x in ((k_BGTC, k), (v_BGTC, v))
  )
  own = jnp.kron(jnp.eye(A), seen_KK.astype(float)) > 0
  seen = jnp.concatenate(
    [seen_BAKT.reshape(B, A * K, -1), jnp.broadcast_to(own, (B, *own.shape))],
    axis=-1,
  )
  mixed = jax.nn.dot_product_attention(
    q.reshape(B, A * K, -1, C), keys, values, mask=seen[:, None],
    implementation='cudnn',
  )  # fmt: skip
  return mixed.reshape(B, A, K, -1)


def attend_parts(q, k, v, k_BGTC, v_BGTC, seen_BAKT, seen_KK):
  """Attention over context and block without copying the context.

  q [B, A, K, G, U, C], k and v [B, A, K, G, C] -> [B, A, K, H * C]. The two
  parts share one softmax.
  """
  B, A, K, G, U, C = q.shape
  scale = C**-0.5
  q_BGAUKC = q.transpose(0, 3, 1, 4, 2, 5)
  over = nn.einsum(
    'bgqc,bgtc->bgqt',
    q_BGAUKC.reshape(B, G, A * U * K, C),
    k_BGTC,
    dtype=jnp.float32,
  ).reshape(B, G, A, U, K, -1)
  k_BGAKC, v_BGAKC = (x.transpose(0, 3, 1, 2, 4) for x in (k, v))
  own = nn.einsum(
    'bgaqc,bgalc->bgaql',
    q_BGAUKC.reshape(B, G, A, U * K, C),
    k_BGAKC,
    dtype=jnp.float32,
  ).reshape(B, G, A, U, K, K)
  scores = jnp.concatenate([over, own], axis=-1) * scale
  seen = jnp.concatenate(
    [seen_BAKT, jnp.broadcast_to(seen_KK, (B, A, K, K))], axis=-1
  )[:, None, :, None]
  weights = nn.masked_softmax(scores, seen).astype(v.dtype)
  T = k_BGTC.shape[2]
  mixed = nn.einsum(
    'bgqt,bgtc->bgqc',
    weights[..., :T].reshape(B, G, A * U * K, T),
    v_BGTC,
  ).reshape(B, G, A, U, K, C)
  mixed = mixed + nn.einsum(
    'bgaql,bgalc->bgaqc',
    weights[..., T:].reshape(B, G, A, U * K, K),
    v_BGAKC,
  ).reshape(B, G, A, U, K, C)
  return mixed.transpose(0, 2, 4, 1, 3, 5).reshape(B, A, K, -1)
