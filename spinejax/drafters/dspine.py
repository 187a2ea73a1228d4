"""DSpine: adjacent causal injection through the depth of a block drafter.

After every layer each slot receives a gated message made from its left
neighbour's feature. At selection the last injection is made again with the
exact code of the predecessor token: for every pair of candidates of adjacent
slots at once (the transition table), through which a walk then chooses.
Its formulas are those of `pallas_kernels.injection.reference`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.injection import reference as injection
from pallas_kernels.injection.api import injection as inject_block
from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig, BackboneParams, Place
from spinejax.drafters.base import Drafter, Proposal
from spinejax.drafters.dflash import each_alone
from spinejax.drafters.factored import (
  Tables,
  greedy_path,
  transition_factored,
)
from spinejax.drafters.transition import (
  check_candidates,
  path,
  predecessors,
)
from spinejax.errors import InputError
from spinejax.target import layers as nn
from spinejax.top import top_k


@dataclasses.dataclass(frozen=True)
class DSpineConfig(BackboneConfig):
  """The backbone's shape and that of the injection.

  Attributes:
    rank: width r of the transfer space; the centred token codes span at most
      min(D, V - 1) directions.
    message: width m of the gated message.
    candidates: N, candidates a slot.
    refine: choose through the transition table; if not, each slot's best
      candidate is proposed as it is (an ablation).
  """

  causal: bool | None = True
  rank: int = 1024
  message: int = 512
  candidates: int = 16
  refine: bool = True

  def __post_init__(self):
    super().__post_init__()
    backbone.check_integers(self, 'rank', 'message', 'candidates')
    if self.rank > min(self.width, self.vocab - 1):
      raise InputError(
        f'rank = {self.rank} exceeds min(width, vocab - 1) = '
        f'{min(self.width, self.vocab - 1)}'
      )
    check_candidates(self)
    if self.anchor_first:
      raise InputError(
        'anchor_first = True: DSpine injects the anchor into the slot after it'
      )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Injection:
  """Trained weights of the injection.

  Attributes:
    readouts_RD, writes_DM: W_R and W_O of each layer.
    message_MR, receiver_MR, predecessor_MR, bias_M: W_msg, W_recv, W_pred and
      bias, shared by the layers.
  """

  readouts_RD: tuple[jax.Array, ...]
  writes_DM: tuple[jax.Array, ...]
  message_MR: jax.Array
  receiver_MR: jax.Array
  predecessor_MR: jax.Array
  bias_M: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DSpineParams:
  """Weights, and the fixed token codes c [V, r] (`drafters.codes`).

  With `tables` the transition table is computed in the factored form.
  """

  backbone: BackboneParams
  injection: Injection
  codes_VR: jax.Array
  tables: Tables | None = None


def feature(h: jax.Array, readout_RD: jax.Array) -> jax.Array:
  """f = sqrt(r) normalise(W_R h), [..., R]."""
  return injection.feature(h, readout_RD, nn.dense)


def code(codes_VR: jax.Array, ids: jax.Array, dtype) -> jax.Array:
  """u = sqrt(r) c(token), [..., R]."""
  rows = jnp.take(codes_VR, ids, axis=0, mode='clip')
  return (rows * codes_VR.shape[1] ** 0.5).astype(dtype)


def gate(inj: Injection, f: jax.Array, u: jax.Array) -> jax.Array:
  """sigmoid(W_recv f + W_pred u + bias), [..., M]: what `write` lets pass."""
  return jax.nn.sigmoid(
    nn.dense(f, inj.receiver_MR)
    + nn.dense(u, inj.predecessor_MR)
    + inj.bias_M.astype(f.dtype)
  )


def write(
  inj: Injection, layer: int, h: jax.Array, f: jax.Array, u: jax.Array
) -> jax.Array:
  """h + |h| / sqrt(D) * W_O (sigmoid(W_recv f + W_pred u + bias) * W_msg u).

  Receivers h and their features f broadcast against predecessors u, so one
  receiver can be tried with many predecessors.
  """
  weights = inj.receiver_MR, inj.predecessor_MR, inj.message_MR, inj.bias_M
  return injection.write(h, f, u, *weights, inj.writes_DM[layer], nn.dense)


def inject(
  inj: Injection,
  layer: int,
  h_BAKD: jax.Array,
  anchor_BAR: jax.Array,
  gold_BASR: jax.Array | None = None,
  replace_BA: jax.Array | None = None,
  decoding: bool = False,
) -> jax.Array:
  """The injection after one layer; slot 0 is left as it is.

  All predecessors are read before any is written, so slots are parallel.

  Args:
    anchor_BAR: code of the anchor, slot 1's predecessor.
    gold_BASR, replace_BA: blocks for which every predecessor is replaced by
      the code of the true token (training only).
    decoding: one block a request, and no gradient is taken: a kernel may do.
  """
  readout_RD = inj.readouts_RD[layer]
  if gold_BASR is None:
    weights = (
      readout_RD, inj.receiver_MR, inj.predecessor_MR, inj.message_MR,
      inj.bias_M, inj.writes_DM[layer],
    )  # fmt: skip
    if not decoding:
      return injection.injection(h_BAKD, anchor_BAR, *weights, nn.dense)
    h_BKD, anchor_BR = h_BAKD[:, 0], anchor_BAR[:, 0]
    return inject_block(h_BKD, anchor_BR, *weights, dense=nn.dense)[:, None]
  f = feature(h_BAKD, readout_RD)
  u = jnp.concatenate([anchor_BAR[:, :, None], f[:, :, 1:-1]], axis=2)
  u = jnp.where(replace_BA[..., None, None], gold_BASR, u)
  written = write(inj, layer, h_BAKD[:, :, 1:], f[:, :, 1:], u)
  return jnp.concatenate([h_BAKD[:, :, :1], written], axis=2)


@dataclasses.dataclass(frozen=True)
class Draft:
  """States of one draft pass.

  Attributes:
    hidden_BAKD: final-normed.
    pre_BAKD: of the last layer, before its injection.
    states_BAKD, features_BAKR: of every layer after its injection; the
      training loss aligns the features with the codes of the labels.
  """

  hidden_BAKD: jax.Array
  pre_BAKD: jax.Array
  states_BAKD: tuple[jax.Array, ...]
  features_BAKR: tuple[jax.Array, ...]


def draft(
  cfg: DSpineConfig,
  params: DSpineParams,
  embed_VD: jax.Array,
  anchor_BA: Int[Array, 'B A'],
  context: list[backbone.Context],
  place: Place,
  gold_BAS: Int[Array, 'B A S'] | None = None,
  replace_BA: jax.Array | None = None,
  replace_layers: int = 0,
) -> Draft:
  """The parallel pass over the blocks.

  `gold_BAS` (true predecessor tokens) and `replace_BA` act in the first
  `replace_layers` layers; training only.
  """
  base, inj = params.backbone, params.injection
  h = backbone.embed_block(cfg, base, embed_VD, anchor_BA)
  anchor_BAR = code(params.codes_VR, anchor_BA, h.dtype)
  gold_BASR = (
    None if gold_BAS is None else code(params.codes_VR, gold_BAS, h.dtype)
  )
  states, features = [], []
  for i, layer in enumerate(base.layers):
    pre = backbone.block_layer(cfg, i, layer, h, context[i], place)
    gold = gold_BASR if i < replace_layers else None
    h = inject(inj, i, pre, anchor_BAR, gold, replace_BA, place.decoding)
    states.append(h)
    features.append(feature(h, inj.readouts_RD[i]))
  hidden = nn.rms_norm(h, base.norm_D, cfg.norm_eps)
  return Draft(hidden, pre, tuple(states), tuple(features))


def refine(
  cfg: DSpineConfig,
  params: DSpineParams,
  pre: Float[Array, '*rows D'],
  u: Float[Array, '*rows R'],
) -> jax.Array:
  """The last write made again with an exact predecessor, final-normed.

  It replaces the parallel last write. In float32: it decides between close
  candidates.
  """
  inj = jax.tree.map(lambda x: x.astype(jnp.float32), params.injection)
  pre, u = pre.astype(jnp.float32), u.astype(jnp.float32)
  last = cfg.layers - 1
  h = write(inj, last, pre, feature(pre, inj.readouts_RD[last]), u)
  return nn.rms_norm(h, params.backbone.norm_D, cfg.norm_eps)


def transition_direct(
  cfg: DSpineConfig,
  params: DSpineParams,
  head_VD: jax.Array,
  pre_BSD: jax.Array,
  candidates_BSN: jax.Array,
  anchor_B: jax.Array,
) -> Float[Array, 'B S N N']:
  """Score of candidate c of slot j after predecessor i, float32.

  s[j, i, c] = <refine(h_pre_j, u_i), head[c]>, where the predecessors of slot
  j are the candidates of slot j - 1 (of slot 1: the anchor).
  """
  before_BSN = predecessors(candidates_BSN, anchor_B)
  u = code(params.codes_VR, before_BSN, jnp.float32)
  refined = refine(cfg, params, pre_BSD[:, :, None], u)
  rows = jnp.take(head_VD, candidates_BSN, axis=0).astype(jnp.float32)
  return backbone.cap(cfg, nn.einsum('bsid,bscd->bsic', refined, rows))


def propose(
  cfg, params, view, cache, history, anchor_B, keys_B, sampling
) -> Proposal:
  """One parallel pass, top-N candidates a slot, transition table, walk."""
  context, place = backbone.at_anchor(cache, history)
  out = draft(cfg, params, view.embed_VD, anchor_B[:, None], context, place)
  with jax.named_scope('select'):
    logits_BSV = backbone.logits_of(
      cfg, out.hidden_BAKD[:, 0, 1:], view.head_VD
    )
    if not cfg.refine:
      return each_alone(logits_BSV, keys_B, sampling)
    candidates_BSN = top_k(logits_BSV, cfg.candidates)[1]
    pre_BSD = out.pre_BAKD[:, 0, 1:]
    table = (view.head_VD, pre_BSD, candidates_BSN, anchor_B)
    greedy = sampling.greedy and cfg.output_multiplier > 0
    if greedy and params.tables is not None:
      tokens_BS = greedy_path(cfg, params, params.tables, *table)
      return Proposal.certain(tokens_BS)
    if params.tables is None:
      scores = transition_direct(cfg, params, *table)
    else:
      scores = transition_factored(cfg, params, params.tables, *table)
    return path(scores, candidates_BSN, keys_B, sampling)


def dspine(cfg: DSpineConfig) -> Drafter:
  """DSpine as a drafter."""
  return Drafter(
    'dspine', cfg, backbone.draft_cache, backbone.extend_backbone, propose
  )
