"""DFlash2: convolutions around every sublayer, and a candidate selector.

Letters as in z-lab/dflash `model.py` (commit 1012959). With x the normed
input of a sublayer f, and c's group of channels [c]:

  dyn = P x                                       [b, 2, taps, groups]
  conv_s(z)_t[c] = sum_i (base[s, i, c] + dyn[t, s, i, [c]]) z_{t-i}[c]
  h += conv_1(f(conv_0(x)))                       z_t = 0 left of the block
  score_j(a -> c) = logit_j(c) + <A[a] * (P h_j), B[c]>

The candidates of a slot are its largest logits; the walk over the scores
chooses one path through them.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spinejax.drafters import backbone
from spinejax.drafters.attention import attend
from spinejax.drafters.backbone import BackboneConfig, BackboneParams, Place
from spinejax.drafters.base import Drafter, Proposal
from spinejax.drafters.transition import (
  check_candidates,
  path,
  predecessors,
)
from spinejax.errors import InputError
from spinejax.target import layers as nn
from spinejax.top import top_k

# `initializer_range` of the published configs.
_STD = 0.02


@dataclasses.dataclass(frozen=True)
class DFlash2Config(BackboneConfig):
  """The backbone's shape and those of convolutions and selector.

  Attributes:
    conv_taps: slots that a convolution looks at, its own included.
    conv_group: channels that share a dynamic kernel.
    selector_rank: width of the candidate selector.
    candidates: N, candidates a slot.
  """

  conv_taps: int = 2
  conv_group: int = 16
  selector_rank: int = 256
  candidates: int = 16

  def __post_init__(self):
    super().__post_init__()
    backbone.check_integers(self, 'conv_taps', 'conv_group')
    backbone.check_integers(self, 'selector_rank', 'candidates')
    if self.width % self.conv_group:
      raise InputError(
        f'conv_group = {self.conv_group} does not divide width = {self.width}'
      )
    check_candidates(self)
    if self.qkv_bias:
      raise InputError('qkv_bias = True: DFlash2 projects without bias')

  @property
  def head_weights(self) -> int:
    """Weights beside the backbone's, as a number."""
    D, R = self.width, self.selector_rank
    conv = 2 * self.conv_taps * D * (1 + D // self.conv_group)
    return 2 * self.layers * conv + R * (2 * self.vocab + D)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Conv:
  """Kernels of the convolutions before (0) and after (1) a sublayer.

  Attributes:
    base_2WD: static kernels.
    dynamic_2WYD: projects the sublayer's input to what is added to them.
  """

  base_2WD: jax.Array
  dynamic_2WYD: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Selector:
  """A, B and P of the scores: `before_VR`, `after_VR` and `hidden_RD`."""

  before_VR: jax.Array
  after_VR: jax.Array
  hidden_RD: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DFlash2Params:
  """Weights; convolutions around attention and MLP of each layer."""

  backbone: BackboneParams
  attention_convs: tuple[Conv, ...]
  mlp_convs: tuple[Conv, ...]
  selector: Selector


def convolve(
  base_WD: jax.Array,
  dynamic_BAKWY: jax.Array,
  z_BAKD: backbone.Block,
) -> backbone.Block:
  """The sum over taps; what lies left of the block counts as zero."""
  K, D = z_BAKD.shape[2:]
  taps, groups = dynamic_BAKWY.shape[3:]
  total = jnp.zeros_like(z_BAKD)
  for i in range(taps):
    kernel = base_WD[i] + jnp.repeat(
      dynamic_BAKWY[..., i, :], D // groups, axis=-1
    )
    earlier = jnp.pad(z_BAKD, ((0, 0), (0, 0), (i, 0), (0, 0)))[:, :, :K]
    total = total + kernel * earlier
  return total


def before_sublayer(
  conv: Conv, x_BAKD: backbone.Block
) -> tuple[backbone.Block, jax.Array]:
  """conv_0(x), and the dynamic kernel of conv_1, which is made from x too."""
  dynamic_BAK2WY = nn.dense(x_BAKD, conv.dynamic_2WYD)
  first, second = dynamic_BAK2WY[..., 0, :, :], dynamic_BAK2WY[..., 1, :, :]
  return convolve(conv.base_2WD[0], first, x_BAKD), second


def hidden_states(
  cfg: DFlash2Config,
  params: DFlash2Params,
  embed_VD: jax.Array,
  anchor_BA: Int[Array, 'B A'],
  context: list[backbone.Context],
  place: Place,
) -> backbone.Block:
  """Final-normed states of every slot, [B, A, K, D]."""
  base = params.backbone
  h = backbone.embed_block(cfg, base, embed_VD, anchor_BA)
  rope = backbone.block_rope(cfg, place, cfg.block)

  for i, layer in enumerate(base.layers):
    conv = params.attention_convs[i]
    x = nn.rms_norm(h, layer.attn_norm_D, cfg.norm_eps)
    x, dynamic = before_sublayer(conv, x)
    qkv = nn.dense(x, layer.qkv_GJCD)
    mixed = attend(cfg, i, layer.head_norms, qkv, rope, context[i], place)
    y = nn.dense(mixed, layer.out_DX)
    h = h + convolve(conv.base_2WD[1], dynamic, y)
    conv = params.mlp_convs[i]
    x = nn.rms_norm(h, layer.mlp_norm_D, cfg.norm_eps)
    x, dynamic = before_sublayer(conv, x)
    y = nn.gated(layer, nn.dense(x, layer.gate_up_F2D))
    h = h + convolve(conv.base_2WD[1], dynamic, y)
  return nn.rms_norm(h, base.norm_D, cfg.norm_eps)


def selector_scores(
  cfg: DFlash2Config,
  params: DFlash2Params,
  unary: Float[Array, '*rows N'],
  hidden: Float[Array, '*rows D'],
  before_ids: Int[Array, '*rows'],
  candidate_ids: Int[Array, '*rows N'],
) -> Float[Array, '*rows N']:
  """Scores of candidates after known tokens, float32; leading axes broadcast.

  Args:
    unary: the candidates' logits.
    hidden: final-normed states of the slots.
    before_ids: the token before each slot.
  """
  del cfg
  pick = params.selector
  f32 = jnp.float32
  before = jnp.take(pick.before_VR, before_ids, axis=0, mode='clip')
  after = jnp.take(pick.after_VR, candidate_ids, axis=0, mode='clip')
  context = before.astype(f32) * nn.dense(hidden, pick.hidden_RD, dtype=f32)
  return unary + nn.einsum('...r,...nr->...n', context, after.astype(f32))


def random_dflash2(
  cfg: DFlash2Config, key: jax.Array, dtype=jnp.float32
) -> DFlash2Params:
  """Fresh weights that are a DFlash: convolutions do nothing, and B is zero.

  As sgl-project/SpecForge `dflash2.py` starts: A and P are normal, of standard
  deviation 0.02.
  """
  base_key, before_key, hidden_key = jax.random.split(key, 3)
  V, D, R, W = cfg.vocab, cfg.width, cfg.selector_rank, cfg.conv_taps

  def convs():
    return tuple(
      Conv(
        jnp.zeros((2, W, D), dtype).at[:, 0].set(1),
        jnp.zeros((2, W, D // cfg.conv_group, D), dtype),
      )
      for _ in range(cfg.layers)
    )

  def normal(key, *shape):
    return (_STD * jax.random.normal(key, shape)).astype(dtype)

  return DFlash2Params(
    backbone.random_backbone(cfg, base_key, dtype),
    convs(),
    convs(),
    Selector(
      before_VR=normal(before_key, V, R),
      after_VR=jnp.zeros((V, R), dtype),
      hidden_RD=normal(hidden_key, R, D),
    ),
  )


def propose(
  cfg, params, view, cache, history, anchor_B, keys_B, sampling
) -> Proposal:
  """One parallel pass, top-N candidates a slot, pairwise scores, walk."""
  context, place = backbone.at_anchor(cache, history)
  hidden_BAKD = hidden_states(
    cfg, params, view.embed_VD, anchor_B[:, None], context, place
  )
  with jax.named_scope('select'):
    hidden_BSD = backbone.proposing(cfg, hidden_BAKD)[:, 0]
    logits_BSV = backbone.logits_of(cfg, hidden_BSD, view.head_VD)
    unary_BSN, ids_BSN = top_k(logits_BSV, cfg.candidates)
    scores_BSNN = selector_scores(
      cfg,
      params,
      unary_BSN[:, :, None],
      hidden_BSD[:, :, None],
      predecessors(ids_BSN, anchor_B),
      ids_BSN[:, :, None],
    )
    return path(scores_BSNN, ids_BSN, keys_B, sampling)


def dflash2(cfg: DFlash2Config) -> Drafter:
  """DFlash2 as a drafter."""
  return Drafter(
    'dflash2', cfg, backbone.draft_cache, backbone.extend_backbone, propose
  )
