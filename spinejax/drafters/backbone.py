"""The block backbone that the whole drafter family shares (DFlash).

Target features of the context, projected once, are keys and values of every
draft layer; a block [anchor, MASK, ...] attends to them and to itself.
Letters as in the DFlash paper (arXiv 2602.06036) and z-lab/dflash `model.py`.

Training runs many blocks of one sequence at once, decoding one: the anchor
axis A serves both.
"""

import dataclasses
import math
import numbers

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spinejax.axes import Count_B, Embed_VD, Features_BKP
from spinejax.drafters.attention import Context, Place, attend
from spinejax.drafters.base import DraftCache, History
from spinejax.errors import InputError
from spinejax.target import layers as nn
from spinejax.target.config import RopeScaling
from spinejax.target.model import append_rows, init_cache

Block = Float[Array, 'B A K D']


def _is_integer(value: object, least: int) -> bool:
  integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  return integer and value >= least


def _is_finite(value: object) -> bool:
  real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return real and math.isfinite(value)


def check_integers(cfg: object, *names: str, least: int = 1) -> None:
  """Refuses a config with a field that is not an integer >= `least`."""
  for name in names:
    value = getattr(cfg, name)
    if not _is_integer(value, least):
      raise InputError(f'{name} = {value!r}, expected an integer >= {least}')


@dataclasses.dataclass(frozen=True)
class BackboneConfig:
  """Static shape of a block drafter.

  Attributes:
    vocab, width: of the target, whose embedding and head are borrowed.
    layers, heads, kv_heads, head_dim, ffn, norm_eps: of the draft layers.
    rope_base, rope_scaling: the drafter's own rotation, not the target's.
    block: K, rows of a block; slot 0 holds the anchor.
    mask_id: token whose embedding fills the open slots.
    taps: target layers whose outputs are the features.
    windows: sliding window of each layer in tokens, or None for full.
    causal: attention inside the block; None: causal in sliding layers only.
    embedding_scale, output_multiplier, softcap: of block embeddings and
      logits; 1, 1 and None in most checkpoints.
    anchor_first: slot k proposes the token after its own place, so that the
      anchor's slot proposes too. Otherwise slot j proposes the token at its
      place, and the anchor's slot nothing. The two are trained differently.
  """

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  ffn: int
  block: int
  mask_id: int
  taps: tuple[int, ...]
  norm_eps: float = 1e-6
  rope_base: float = 1e6
  rope_scaling: RopeScaling | None = None
  windows: tuple[int | None, ...] | None = None
  causal: bool | None = None
  embedding_scale: float = 1.0
  output_multiplier: float = 1.0
  softcap: float | None = None
  qk_norm: bool = True
  qkv_bias: bool = False
  anchor_first: bool = False

  def __post_init__(self):
    check_integers(self, 'vocab', 'width', 'layers', 'heads', 'kv_heads')
    check_integers(self, 'head_dim', 'ffn', 'block')
    check_integers(self, 'mask_id', least=0)
    self._check_numbers()
    if type(self.anchor_first) is not bool:
      raise InputError(
        f'anchor_first = {self.anchor_first!r}, expected True or False'
      )
    if self.slots < 1:
      raise InputError(f'block = {self.block} leaves no slot to propose')
    if not 0 <= self.mask_id < self.vocab:
      raise InputError(
        f'mask_id = {self.mask_id} is outside the vocabulary of {self.vocab}'
      )
    if self.heads % self.kv_heads:
      raise InputError(
        f'heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}'
      )
    # The target joins its tapped states in the order of its layers.
    ids = [t for t in self.taps if _is_integer(t, -1)]
    if not ids or sorted(set(ids)) != list(self.taps):
      raise InputError(f'taps = {self.taps}, expected ascending layer ids')
    if self.windows is not None and len(self.windows) != self.layers:
      raise InputError(
        f'windows names {len(self.windows)} layers, the drafter has '
        f'{self.layers}'
      )
    for window in self.windows or ():
      if window is not None and not _is_integer(window, 1):
        raise InputError(
          f'windows = {self.windows}, expected integers >= 1 or None'
        )

  def _check_numbers(self):
    if self.head_dim % 2:
      raise InputError(f'head_dim = {self.head_dim}, expected an even number')
    for name in ('norm_eps', 'rope_base', 'softcap'):
      value = getattr(self, name)
      if name == 'softcap' and value is None:
        continue
      if not _is_finite(value) or value <= 0:
        raise InputError(
          f'{name} = {value!r}, expected a positive, finite number'
        )
    for name in ('embedding_scale', 'output_multiplier'):
      value = getattr(self, name)
      if not _is_finite(value) or value == 0:
        raise InputError(f'{name} = {value!r}, expected finite and not zero')
    scaling = self.rope_scaling
    if scaling is not None:
      values = dataclasses.astuple(scaling)
      if not all(_is_finite(x) and x > 0 for x in values) or (
        scaling.low_freq_factor >= scaling.high_freq_factor
      ):
        raise InputError(
          f'rope_scaling = {scaling}, expected positive, finite numbers, '
          'low_freq_factor below high_freq_factor'
        )

  @property
  def slots(self) -> int:
    """Proposals of a block, S."""
    return self.block if self.anchor_first else self.block - 1

  @property
  def head_weights(self) -> int:
    """Weights of what a method adds to the backbone."""
    return 0

  def of_rows(self, rows: int) -> 'BackboneConfig':
    """The same drafter for rounds that verify `rows` rows: the anchor and
    rows - 1 proposals."""
    return dataclasses.replace(self, block=rows - self.anchor_first)

  def window(self, layer: int) -> int | None:
    """Tokens of context that a layer sees; None: all."""
    return None if self.windows is None else self.windows[layer]

  def is_causal(self, layer: int) -> bool:
    """Whether rows of a block see only those before them in a layer."""
    if self.causal is None:
      return self.window(layer) is not None
    return self.causal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BackboneParams:
  """Weights. `mask_D` is an optional learned embedding of the open slots, in
  place of the target's embedding of `mask_id`."""

  fc_DP: jax.Array
  hidden_norm_D: jax.Array
  layers: tuple[nn.LayerParams, ...]
  norm_D: jax.Array
  mask_D: jax.Array | None = None


def tap_ids(target_layers: int, taps: int) -> tuple[int, ...]:
  """The published default: evenly from layer 1 to N - 3, rounded half to even.

  Source: z-lab/dflash `model.py` (build_target_layer_ids).

  Raises:
    InputError: the target has too few layers for that many different taps
      before its last layer.
  """
  if not _is_integer(taps, 1):
    raise InputError(f'taps = {taps!r}, expected an integer >= 1')
  least = 3 if taps == 1 else taps + 3
  if not _is_integer(target_layers, least):
    raise InputError(
      f'target of {target_layers} layers has too few for {taps} taps, '
      f'expected at least {least}'
    )
  if taps == 1:
    return (target_layers // 2,)
  step = (target_layers - 4) / (taps - 1)
  return tuple(round(1 + i * step) for i in range(taps))


def context_kv(
  cfg: BackboneConfig,
  params: BackboneParams,
  features_BTP: Float[Array, 'B T P'],
  position_BT: Int[Array, 'B T'],
) -> list[tuple[jax.Array, jax.Array]]:
  """Keys (normed, rotated) and values [B, T, G, C] of every layer."""
  c = nn.dense(features_BTP, params.fc_DP)
  c = nn.rms_norm(c, params.hidden_norm_D, cfg.norm_eps)
  cos, sin = nn.rotary(
    position_BT, cfg.head_dim, cfg.rope_base, cfg.rope_scaling
  )
  rows = []
  for layer in params.layers:
    kv = nn.dense(c, layer.qkv_GJCD[:, -2:])
    if layer.qkv_bias_GJC is not None:
      kv = kv + layer.qkv_bias_GJC[:, -2:]
    k, v = kv[..., 0, :], kv[..., 1, :]
    if layer.k_norm_C is not None:
      k = nn.rms_norm(k, layer.k_norm_C, cfg.norm_eps)
    rows.append((nn.rotate(k, cos, sin), v))
  return rows


def draft_cache(
  cfg: BackboneConfig, batch: int, capacity: int, dtype
) -> DraftCache:
  """An empty context cache for the draft layers."""
  return init_cache(cfg, batch, capacity, dtype)


def extend(
  cfg: BackboneConfig,
  params: BackboneParams,
  cache: DraftCache,
  features_BKP: Features_BKP,
  count_B: Count_B,
) -> DraftCache:
  """Appends context rows made from tapped target states.

  The first `count_B` rows of each request are taken; the rest is padding,
  left behind the watermark. Row t of the cache is the context token at
  position t.
  """
  position_BK = cache.length_B[:, None] + jnp.arange(features_BKP.shape[1])
  rows = context_kv(cfg, params, features_BKP, position_BK)
  return DraftCache(
    k=tuple(
      append_rows(old, k, cache.length_B)
      for old, (k, _) in zip(cache.k, rows, strict=True)
    ),
    v=tuple(
      append_rows(old, v, cache.length_B)
      for old, (_, v) in zip(cache.v, rows, strict=True)
    ),
    length_B=cache.length_B + count_B,
  )


def extend_backbone(
  cfg: BackboneConfig,
  params,
  cache: DraftCache,
  features_BKP: Features_BKP,
  count_B: Count_B,
) -> DraftCache:
  """`extend` of a drafter that has the backbone among its weights."""
  return extend(cfg, params.backbone, cache, features_BKP, count_B)


def at_anchor(
  cache: DraftCache, history: History
) -> tuple[list[Context], Place]:
  """What the block after the last token looks at when decoding, and where
  it sits."""
  place = Place(
    history.length_B[:, None] - 1, cache.length_B[:, None], decoding=True
  )
  return list(zip(cache.k, cache.v, strict=True)), place


def embed_block(
  cfg: BackboneConfig,
  params: BackboneParams,
  embed_VD: Embed_VD,
  anchor_BA: Int[Array, 'B A'],
) -> Block:
  """[anchor, MASK x (K - 1)] embedded."""
  anchor_BA1D = jnp.take(embed_VD, anchor_BA, axis=0, mode='clip')[:, :, None]
  mask_D = embed_VD[cfg.mask_id] if params.mask_D is None else params.mask_D
  masks = jnp.broadcast_to(
    mask_D, (*anchor_BA.shape, cfg.block - 1, cfg.width)
  ).astype(anchor_BA1D.dtype)
  return jnp.concatenate([anchor_BA1D, masks], axis=2) * cfg.embedding_scale


def block_rope(
  cfg: BackboneConfig, place: Place, rows: int
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of the places of a block's rows, [B, A, K, 1, C/2]."""
  position_BAK = place.start_BA[..., None] + jnp.arange(rows)
  return nn.rotary(position_BAK, cfg.head_dim, cfg.rope_base, cfg.rope_scaling)


def block_layer(
  cfg: BackboneConfig,
  index: int,
  layer: nn.LayerParams,
  h: Block,
  context: Context,
  place: Place,
) -> Block:
  """One draft layer: attention over [context, own block], then SwiGLU."""
  rope = block_rope(cfg, place, h.shape[2])
  qkv = nn.fused_qkv(layer, h, cfg.norm_eps)
  mixed = attend(cfg, index, layer.head_norms, qkv, rope, context, place)
  h = h + nn.dense(mixed, layer.out_DX)
  return h + nn.swiglu(layer, h, cfg.norm_eps)


def proposing(cfg: BackboneConfig, x_BAKD: Block) -> Block:
  """The rows of a block that propose, [B, A, S, ...]: in both layouts row i
  of them proposes the token i + 1 after the anchor."""
  return x_BAKD[:, :, x_BAKD.shape[2] - cfg.slots :]


def logits_of(
  cfg: BackboneConfig, hidden: jax.Array, head_VD: Embed_VD
) -> jax.Array:
  """Logits, float32, of final-normed states [..., D]."""
  return cap(cfg, nn.dense(hidden, head_VD, dtype=jnp.float32))


def cap(cfg: BackboneConfig, logits: jax.Array) -> jax.Array:
  """The configured multiplier and soft cap: s tanh(m l / s)."""
  logits = logits * cfg.output_multiplier
  if cfg.softcap is None:
    return logits
  return cfg.softcap * jnp.tanh(logits / cfg.softcap)


def random_backbone(
  cfg: BackboneConfig, key: jax.Array, dtype=jnp.float32
) -> BackboneParams:
  """Fresh weights: normal, scaled by fan-in; norms at one."""
  keys = jax.random.split(key, cfg.layers + 1)
  fan_in = len(cfg.taps) * cfg.width
  fc_DP = jax.random.normal(keys[0], (cfg.width, fan_in), jnp.float32)
  ones = jnp.ones((cfg.width,), dtype)
  return BackboneParams(
    fc_DP=(fc_DP * fan_in**-0.5).astype(dtype),
    hidden_norm_D=ones,
    layers=tuple(nn.random_layer(k, cfg, dtype) for k in keys[1:]),
    norm_D=ones,
  )
