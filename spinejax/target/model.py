"""The frozen target: parameters, key/value cache and one forward pass.

`forward` serves chunked prefill, the single decoding step and the
verification of a block alike: it reads Q tokens that follow the cache's valid
rows, appends their keys and values behind those rows, and leaves the length
where it is. The caller moves the length over the rows it keeps, so rolling
back rejected rows costs nothing.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.block_attention.api import block_attention
from spinejax.axes import Count_B, Embed_VD, Hidden_BQD, Tokens_BQ
from spinejax.sharding import hint
from spinejax.target import layers as nn
from spinejax.target.config import TargetConfig
from spinejax.target.packing import Packing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetParams:
  """Weights; a tuple of layers, since stacked ones are copied by XLA:GPU."""

  embed_VD: jax.Array
  layers: tuple[nn.LayerParams, ...]
  norm_D: jax.Array
  head_VD: jax.Array  # the very array `embed_VD` where the target ties them


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
  """Keys (rotated) and values, one [B, G, T, C] a layer; valid rows of each
  request: [0, length_B)."""

  k: tuple[jax.Array, ...]
  v: tuple[jax.Array, ...]
  length_B: jax.Array

  @property
  def capacity(self) -> int:
    """Rows that each request has, T."""
    return self.k[0].shape[2]

  def advance(self, count_B: Count_B) -> 'KVCache':
    """The same rows with the valid length moved by `count_B`."""
    return dataclasses.replace(self, length_B=self.length_B + count_B)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forward:
  """What `forward` returns: final-normed states, tapped states, the cache.

  Of a packed pass the states are [Q, D]; the tapped ones never are.
  """

  hidden_BQD: jax.Array
  features_BQP: jax.Array
  cache: KVCache


def init_cache(shape, batch: int, capacity: int, dtype=jnp.float32) -> KVCache:
  """An empty cache for a model of `shape` (layers, kv_heads, head_dim).

  Every array has a buffer of its own: two that share one cannot both be
  donated.
  """

  def rows():
    size = (batch, shape.kv_heads, capacity, shape.head_dim)
    return tuple(jnp.zeros(size, dtype) for _ in range(shape.layers))

  return KVCache(k=rows(), v=rows(), length_B=jnp.zeros((batch,), jnp.int32))


def append_rows(
  cache_BGTC: jax.Array, rows_BQGC: jax.Array, start_B: jax.Array
) -> jax.Array:
  """Writes Q rows of each request from `start_B` on.

  Rows past the capacity are dropped: a clamped slice update would overwrite
  valid rows in silence.
  """
  at_BQ = start_B[:, None] + jnp.arange(rows_BQGC.shape[1])

  def write(cache_TC, rows_QC, at_Q):
    return cache_TC.at[at_Q].set(
      rows_QC.astype(cache_TC.dtype), mode='drop', unique_indices=True
    )

  # Mapped, not indexed by batch and group: XLA would gather the rows of all
  # devices to scatter them along an axis that is split.
  over_groups = jax.vmap(write, in_axes=(0, 1, None))
  # Behind the barrier XLA:CPU writes a single row in place; without it, it
  # writes one copy of the cache for the attention and one to keep.
  return lax.optimization_barrier(
    jax.vmap(over_groups)(cache_BGTC, rows_BQGC, at_BQ)
  )


def forward(
  cfg: TargetConfig,
  params: TargetParams,
  tokens_BQ: Tokens_BQ,
  cache: KVCache,
  taps: tuple[int, ...] = (),
  packing: Packing | None = None,
) -> Forward:
  """Reads Q tokens a request, causally, after the cache's valid rows.

  Args:
    cfg: the target's shape.
    params: its weights; activations take their dtype.
    tokens_BQ: token ids; a row may be padded on the right (what follows its
      last real token is neither seen by it nor kept if the caller advances
      the cache by the real count). Negative ids stand for "no token".
    cache: rows [0, length_B) are attended to; row q sits at position
      length_B + q.
    taps: layer ids i, ascending; the output of layer i is tapped (-1: the
      embedding).
    packing: the rows that are to be read; None reads all. Of the others,
      which no row that is read looks at, what is returned means nothing.

  Returns:
    States after the final norm, the tapped states joined along the width, and
    the cache with the Q rows appended and its length unchanged.
  """
  position_BQ = cache.length_B[:, None] + jnp.arange(tokens_BQ.shape[1])
  rope = nn.rotary(position_BQ, cfg.head_dim, cfg.rope_base, cfg.rope_scaling)
  seen_BQT = jnp.arange(cache.capacity) <= position_BQ[..., None]
  keys, values = [], []

  def in_xla(qkv, k_BGTC, v_BGTC, length_B, rope, norms):
    q, k, v = nn.split_qkv(qkv, rope, norms, cfg.norm_eps)
    k_BGTC = append_rows(k_BGTC, k, length_B)
    v_BGTC = append_rows(v_BGTC, v, length_B)
    return nn.attend(q, k_BGTC, v_BGTC, seen_BQT), k_BGTC, v_BGTC

  def attend(layer, i, qkv):
    if packing is not None:
      qkv = packing.unpack(qkv)
    mixed, k, v = block_attention(
      in_xla, qkv, cache.k[i], cache.v[i], cache.length_B, rope,
      layer.head_norms, eps=cfg.norm_eps, causal=True, append=True,
    )  # fmt: skip
    keys.append(k)
    values.append(v)
    return mixed if packing is None else packing.pack(mixed)

  tokens = tokens_BQ if packing is None else packing.pack(tokens_BQ)
  hidden_BQD, features_BQP = _layers(cfg, params, tokens, taps, attend)
  if packing is not None:
    features_BQP = packing.unpack(features_BQP)
  cache = KVCache(tuple(keys), tuple(values), cache.length_B)
  return Forward(hidden_BQD, features_BQP, cache)


def read(
  cfg: TargetConfig,
  params: TargetParams,
  tokens_BT: Tokens_BQ,
  taps: tuple[int, ...],
) -> tuple[Hidden_BQD, jax.Array]:
  """States of whole sequences, of which no keys and values are kept.

  Returns:
    As `forward`: the states after the final norm, and the tapped ones.
  """
  return _read(cfg, params, tokens_BT, taps)[0]


def read_prompts(
  cfg: TargetConfig,
  params: TargetParams,
  tokens_BQ: Tokens_BQ,
  cache: KVCache,
  first: jax.Array,
) -> tuple[Hidden_BQD, KVCache]:
  """Reads whole prompts of one length into a part of a larger batch's cache.

  As `forward` from an empty cache, but a prompt attends to itself and not to
  the cache, so that its attention is that of a whole sequence.

  Args:
    first: the request of the cache at which these begin; there must be room.

  Returns:
    The states after the final norm, and the cache with its length unchanged.
  """
  (hidden_BQD, _), rows = _read(cfg, params, tokens_BQ, ())

  def put(caches, which):
    return tuple(
      lax.dynamic_update_slice(
        all_BGTC, new[which].swapaxes(1, 2), (first, 0, 0, 0)
      )
      for all_BGTC, new in zip(caches, rows, strict=True)
    )

  return hidden_BQD, KVCache(put(cache.k, 0), put(cache.v, 1), cache.length_B)


def _read(cfg, params, tokens_BT, taps):
  """What `_layers` gives of whole sequences, and keys and values by layer."""
  B, T = tokens_BT.shape
  position_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
  rope = nn.rotary(position_BT, cfg.head_dim, cfg.rope_base, cfg.rope_scaling)
  rows = []

  def attend(layer, i, qkv):
    del i
    q, k, v = nn.split_qkv(qkv, rope, layer.head_norms, cfg.norm_eps)
    rows.append((k, v))
    return nn.attend_causally(q, k, v)

  return _layers(cfg, params, tokens_BT, taps, attend), rows


def _layers(cfg, params, tokens, taps, attend):
  """Final-normed and tapped states of tokens [B, Q], or packed ones [Q];
  `attend` mixes the rows of a layer."""
  h = jnp.take(params.embed_VD, tokens, axis=0, mode='clip')
  tapped = [h] if -1 in taps else []
  for i, layer in enumerate(params.layers):
    mixed = attend(layer, i, nn.fused_qkv(layer, h, cfg.norm_eps))
    h = h + nn.dense(mixed, layer.out_DX)
    h = h + nn.swiglu(layer, h, cfg.norm_eps)
    if i in taps:
      tapped.append(h)
  features = tapped or [jnp.zeros((*tokens.shape, 0), h.dtype)]
  # A drafter splits them; without the hint XLA would split h for that.
  letters = 'BQ.' if tokens.ndim == 2 else 'Q.'
  features = hint(jnp.concatenate(features, axis=-1), letters)
  return nn.rms_norm(h, params.norm_D, cfg.norm_eps), features


def unembed(hidden_BQD: Hidden_BQD, head_VD: Embed_VD) -> Float[Array, 'B Q V']:
  """Logits, float32, of final-normed states, packed or not."""
  return nn.dense(hidden_BQD, head_VD, dtype=jnp.float32)


def random_params(
  cfg: TargetConfig, key: jax.Array, dtype=jnp.float32
) -> TargetParams:
  """Random weights of the shape `cfg`, for timing and for tests."""
  keys = jax.random.split(key, cfg.layers + 2)

  def table(key):
    x = jax.random.normal(key, (cfg.vocab, cfg.width), jnp.float32)
    return (x * cfg.width**-0.5).astype(dtype)

  embed_VD = table(keys[0])
  return TargetParams(
    embed_VD=embed_VD,
    layers=tuple(nn.random_layer(k, cfg, dtype) for k in keys[2:]),
    norm_D=jnp.ones((cfg.width,), dtype),
    head_VD=embed_VD if cfg.tied else table(keys[1]),
  )
