"""What DSpine knows layer by layer, for notebooks and TensorBoard."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from spinejax.drafters import backbone, dspine
from spinejax.drafters.base import DraftModel
from spinejax.drafters.transition import predecessors, walk
from spinejax.errors import InputError
from spinejax.target import layers as nn
from spinejax.target.model import TargetParams
from spinejax.top import top_k
from spinejax.verify.sampling import Sampling, Stream, round_keys


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inside:
  """One block of one request, slots 1..S, taken apart.

  L draft layers, N candidates of a slot, M the message.

  Attributes:
    heard_LS: the token whose code lies nearest to each layer's feature, which
      is what the slot tells its right neighbour.
    said_LS: the best token by the head, were the draft to end at this layer.
    gate_LSM: the gates, 0 (nothing passes) to 1.
    write_LS: length of what an injection adds, over that of the state.
    candidates_SN, before_SN: of each slot, and of its predecessor.
    scores_SNN: the transition table; rows are predecessors.
    walk_S: the proposals that it leads to.
    alone_S: each slot's best without it.
  """

  heard_LS: jax.Array
  said_LS: jax.Array
  gate_LSM: jax.Array
  write_LS: jax.Array
  candidates_SN: jax.Array
  before_SN: jax.Array
  scores_SNN: jax.Array
  walk_S: jax.Array
  alone_S: jax.Array


def look_inside(target: TargetParams, draft: DraftModel, state) -> Inside:
  """Drafts once more for the first request of a state between two rounds.

  Args:
    state: `decode.DecodeState`; stays valid.

  Raises:
    InputError: the drafter is not DSpine, or does not refine.
  """
  cfg = draft.drafter.cfg
  if not isinstance(cfg, dspine.DSpineConfig) or not cfg.refine:
    raise InputError(
      f'drafter {draft.drafter.name!r}, expected dspine with its refinement'
    )
  return _look(draft.drafter, target, draft.params, state)


@functools.partial(jax.jit, static_argnums=0)
def _look(drafter, target, params, state) -> Inside:
  cfg, inj = drafter.cfg, params.injection
  cache = drafter.extend(
    cfg, params, state.draft_cache, state.pending_BKP, state.pending_count_B
  )
  place = backbone.Place(state.length_B[:, None] - 1, cache.length_B[:, None])
  contexts = list(zip(cache.k, cache.v, strict=True))
  anchor_BA = state.anchor_B[:, None]
  h = backbone.embed_block(cfg, params.backbone, target.embed_VD, anchor_BA)
  anchor_BAR = dspine.code(params.codes_VR, anchor_BA, h.dtype)
  heard, said, gates, writes = [], [], [], []

  def speak(h_BAKD):
    hidden = nn.rms_norm(h_BAKD, params.backbone.norm_D, cfg.norm_eps)
    return backbone.logits_of(cfg, hidden[:, 0, 1:], target.head_VD)

  for i, layer in enumerate(params.backbone.layers):
    pre = backbone.block_layer(cfg, i, layer, h, contexts[i], place)
    f = dspine.feature(pre, inj.readouts_RD[i])
    u = jnp.concatenate([anchor_BAR[:, :, None], f[:, :, 1:-1]], axis=2)
    gates.append(dspine.gate(inj, f[:, :, 1:], u)[0, 0])
    h = dspine.inject(inj, i, pre, anchor_BAR)
    added = h[0, 0, 1:] - pre[0, 0, 1:]
    writes.append(
      jnp.linalg.norm(added, axis=-1) / jnp.linalg.norm(pre[0, 0, 1:], axis=-1)
    )
    told = dspine.feature(h[0, 0, 1:], inj.readouts_RD[i])
    heard.append(jnp.argmax(nn.dense(told, params.codes_VR), axis=-1))
    logits_BSV = speak(h)
    said.append(jnp.argmax(logits_BSV[0], axis=-1))
  candidates_BSN = top_k(logits_BSV, cfg.candidates)[1]
  scores_BSNN = dspine.transition_direct(
    cfg, params, target.head_VD, pre[:, 0, 1:], candidates_BSN, state.anchor_B
  )
  keys_B = round_keys(state.seed_B, state.length_B - 1, Stream.DRAFT)
  greedy = Sampling.make(len(state.anchor_B), 0.0)
  walk_BS, _ = walk(scores_BSNN, candidates_BSN, keys_B, greedy)
  return Inside(
    jnp.stack(heard), jnp.stack(said), jnp.stack(gates), jnp.stack(writes),
    candidates_BSN[0], predecessors(candidates_BSN, state.anchor_B)[0],
    scores_BSNN[0], walk_BS[0], said[-1],
  )  # fmt: skip
