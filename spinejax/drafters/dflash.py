"""DFlash: one parallel pass proposes a whole block (arXiv 2602.06036)."""

import jax
import jax.numpy as jnp

from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig, BackboneParams, Place
from spinejax.drafters.base import Dense, Drafter, Proposal
from spinejax.target import layers as nn
from spinejax.verify.sampling import gumbel, law, peak

DFlashConfig = BackboneConfig
DFlashParams = BackboneParams


def hidden_states(
  cfg: DFlashConfig,
  params: DFlashParams,
  embed_VD: jax.Array,
  anchor_BA: jax.Array,
  context: list[backbone.Context],
  place: Place,
) -> jax.Array:
  """Final-normed states of every slot, [B, A, K, D]."""
  h = backbone.embed_block(cfg, params, embed_VD, anchor_BA)
  for i, layer in enumerate(params.layers):
    h = backbone.block_layer(cfg, i, layer, h, context[i], place)
  return nn.rms_norm(h, params.norm_D, cfg.norm_eps)


def propose(
  cfg, params, view, cache, history, anchor_B, keys_B, sampling
) -> Proposal:
  """Every slot on its own: the argmax, or a sample with its dense law."""
  context, place = backbone.at_anchor(cache, history)
  hidden_BAKD = hidden_states(
    cfg, params, view.embed_VD, anchor_B[:, None], context, place
  )
  with jax.named_scope('select'):
    hidden_BSD = backbone.proposing(cfg, hidden_BAKD)[:, 0]
    logits_BSV = backbone.logits_of(cfg, hidden_BSD, view.head_VD)
    return each_alone(logits_BSV, keys_B, sampling)


def each_alone(logits_BSV, keys_B, sampling) -> Proposal:
  """The argmax of every slot, or a sample of each with its dense law."""
  confidence_BS = peak(logits_BSV, sampling)
  if sampling.greedy:
    tokens_BS = jnp.argmax(logits_BSV, -1).astype(jnp.int32)
    return Proposal.certain(tokens_BS, confidence_BS)
  q_BSV = law(logits_BSV, sampling)
  noisy = jnp.log(q_BSV) + gumbel(keys_B, q_BSV.shape[1:])
  tokens_BS = jnp.argmax(noisy, -1).astype(jnp.int32)
  return Proposal(tokens_BS, Dense(q_BSV), confidence_BS)


def dflash(cfg: DFlashConfig) -> Drafter:
  """DFlash as a drafter."""
  return Drafter('dflash', cfg, backbone.draft_cache, backbone.extend, propose)
