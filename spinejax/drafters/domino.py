"""Domino: a recurrent correction of the logits of a block drafter.

A GRU reads the embeddings of the tokens before a slot; a small MLP turns its
state and the slot's into a correction of the logits. Letters as in
sgl-project/SpecForge `domino.py` (arXiv 2605.29707); e_k embeds the token
before the one that slot k proposes, e_0 the anchor:

  r, z = sigmoid(W e_k + U g)             (each its rows of W and U)
  n = tanh(W e_k + r * (U g));  g_k = (1 - z) n + z g,   g = g_{k-1}, 0 at first
  logits_k = base_k + embed_proj_2 silu(embed_proj_0 [h_k; g_k])

The first `pure_draft_prefix_len` slots are not corrected.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.base import Drafter, Proposal
from spinejax.drafters.dflash import hidden_states
from spinejax.drafters.sequence import choose
from spinejax.target import layers as nn

# `initializer_range` of the published configs.
_STD = 0.02


@dataclasses.dataclass(frozen=True)
class DominoConfig(BackboneConfig):
  """The backbone's shape and that of the correction.

  Attributes:
    emb_dim: E, rank of the correction.
    gru_dim: Z, width of the recurrent state.
    pure_draft_prefix_len: proposing slots that are not corrected.
  """

  emb_dim: int = 256
  gru_dim: int = 1024
  pure_draft_prefix_len: int = 1

  def __post_init__(self):
    super().__post_init__()
    backbone.check_integers(self, 'emb_dim', 'gru_dim')
    backbone.check_integers(self, 'pure_draft_prefix_len', least=0)

  @property
  def head_weights(self) -> int:
    """Weights beside the backbone's, as a number."""
    D, E, Z = self.width, self.emb_dim, self.gru_dim
    return 3 * Z * (D + Z) + E * (D + Z + self.vocab)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DominoParams:
  """Weights.

  Attributes:
    input_3ZD, recurrent_3ZZ: W and U of the GRU, in the order r, z, n.
    down_EI: embed_proj_0; I is the state of the slot, then of the GRU.
    up_VE: embed_proj_2.
  """

  backbone: BackboneParams
  input_3ZD: jax.Array
  recurrent_3ZZ: jax.Array
  down_EI: jax.Array
  up_VE: jax.Array


def gru(
  params: DominoParams,
  g: Float[Array, '*rows Z'],
  input_3Z: Float[Array, '*rows 3 Z'],
) -> Float[Array, '*rows Z']:
  """The state after one more token, from W e of it."""
  own_3Z = nn.dense(g, params.recurrent_3ZZ)
  r = jax.nn.sigmoid(input_3Z[..., 0, :] + own_3Z[..., 0, :])
  z = jax.nn.sigmoid(input_3Z[..., 1, :] + own_3Z[..., 1, :])
  n = jnp.tanh(input_3Z[..., 2, :] + r * own_3Z[..., 2, :])
  return (1 - z) * n + z * g


def gru_inputs(
  params: DominoParams, embed_VD: jax.Array, tokens: Int[Array, '*rows']
) -> Float[Array, '*rows 3 Z']:
  """W e of tokens."""
  rows = jnp.take(embed_VD, tokens, axis=0, mode='clip')
  return nn.dense(rows, params.input_3ZD)


def gru_states(
  params: DominoParams, embed_VD: jax.Array, before_BAS: Int[Array, 'B A S']
) -> Float[Array, 'B A S Z']:
  """State k has consumed the tokens before slots 0..k."""
  input_BAS3Z = gru_inputs(params, embed_VD, before_BAS)

  def consume(g, input_BA3Z):
    g = gru(params, g, input_BA3Z)
    return g, g

  start = jnp.zeros_like(input_BAS3Z[:, :, 0, 0])
  _, g_SBAZ = lax.scan(consume, start, jnp.moveaxis(input_BAS3Z, 2, 0))
  return jnp.moveaxis(g_SBAZ, 0, 2)


def low_rank(
  params: DominoParams, h: Float[Array, '*rows D'], g: Float[Array, '*rows Z']
) -> Float[Array, '*rows E']:
  """z of a slot: silu(embed_proj_0 [h; g])."""
  joined = jnp.concatenate([h, g.astype(h.dtype)], axis=-1)
  return jax.nn.silu(nn.dense(joined, params.down_EI))


def correction(
  cfg: DominoConfig,
  params: DominoParams,
  embed_VD: jax.Array,
  hidden_BASD: Float[Array, 'B A S D'],
  before_BAS: Int[Array, 'B A S'],
) -> Float[Array, 'B A S E']:
  """z of every slot after known tokens: logits are base + up_VE z.

  Args:
    embed_VD: the target's embedding.
    hidden_BASD: final-normed states of the slots that propose
      (`backbone.proposing`).
    before_BAS: the token before the one that each of them proposes: the
      anchor, then the tokens after it. All of a block, from the first on.
  """
  z_BASE = low_rank(
    params, hidden_BASD, gru_states(params, embed_VD, before_BAS)
  )
  corrected_S1 = jnp.arange(z_BASE.shape[2])[:, None] >= (
    cfg.pure_draft_prefix_len
  )
  return jnp.where(corrected_S1, z_BASE, 0)


def random_domino(
  cfg: DominoConfig, key: jax.Array, dtype=jnp.float32
) -> DominoParams:
  """Fresh weights, as SpecForge starts them.

  The GRU is uniform in +-1 / sqrt(Z), torch's default; embed_proj is normal,
  of standard deviation 0.02: the first correction is small beside the logits.
  """
  base_key, *keys = jax.random.split(key, 5)
  V, D, E, Z = cfg.vocab, cfg.width, cfg.emb_dim, cfg.gru_dim

  def uniform(key, *shape):
    bound = Z**-0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  def normal(key, *shape):
    return (_STD * jax.random.normal(key, shape)).astype(dtype)

  return DominoParams(
    backbone.random_backbone(cfg, base_key, dtype),
    input_3ZD=uniform(keys[0], 3, Z, D),
    recurrent_3ZZ=uniform(keys[1], 3, Z, Z),
    down_EI=normal(keys[2], E, D + Z),
    up_VE=normal(keys[3], V, E),
  )


def propose(
  cfg, params, view, cache, history, anchor_B, keys_B, sampling
) -> Proposal:
  """One parallel pass, then slot by slot."""
  context, place = backbone.at_anchor(cache, history)
  hidden_BAKD = hidden_states(
    cfg, params.backbone, view.embed_VD, anchor_B[:, None], context, place
  )
  with jax.named_scope('select'):
    hidden_BSD = backbone.proposing(cfg, hidden_BAKD)[:, 0]
    base_BSV = backbone.logits_of(cfg, hidden_BSD, view.head_VD)

    def step(k, g, before_B):
      g = gru(params, g, gru_inputs(params, view.embed_VD, before_B))
      if k < cfg.pure_draft_prefix_len:
        return g, None
      return g, low_rank(params, hidden_BSD[:, k], g)

    start = jnp.zeros((anchor_B.shape[0], cfg.gru_dim), hidden_BSD.dtype)
    return choose(
      base_BSV, params.up_VE, step, start, anchor_B, keys_B, sampling
    )


def domino(cfg: DominoConfig) -> Drafter:
  """Domino as a drafter."""
  return Drafter(
    'domino', cfg, backbone.draft_cache, backbone.extend_backbone, propose
  )
