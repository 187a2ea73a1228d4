"""DSpine's transition table in the factored form.

With products of the weights made once, a score takes no D-wide vector a
predecessor; and the best candidate after each takes no more than two vectors
as wide as a message.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.injection import reference as injection
from pallas_kernels.transition.api import transition
from spinejax.drafters import backbone
from spinejax.drafters.transition import predecessors
from spinejax.target import layers as nn

if TYPE_CHECKING:
  from spinejax.drafters.dspine import DSpineConfig, DSpineParams


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
  """Static products that let the transition table skip D-wide work.

  Attributes:
    write_VM: (head * norm scale) W_O of the last layer.
    gram_MM: W_O^T W_O.
    message_VM, gate_VM: sqrt(r) codes through W_msg and W_pred.
  """

  write_VM: jax.Array
  gram_MM: jax.Array
  message_VM: jax.Array
  gate_VM: jax.Array


def make_tables(
  cfg: DSpineConfig, params: DSpineParams, head_VD: jax.Array
) -> Tables:
  """The static products of the factored form, float32."""
  f32 = jnp.float32
  inj = jax.tree.map(lambda x: x.astype(f32), params.injection)
  write_DM = inj.writes_DM[cfg.layers - 1]
  codes = params.codes_VR.astype(f32) * cfg.rank**0.5
  scaled = head_VD.astype(f32) * params.backbone.norm_D.astype(f32)
  return Tables(
    write_VM=nn.einsum('vd,dm->vm', scaled, write_DM),
    gram_MM=nn.einsum('dm,dn->mn', write_DM, write_DM),
    message_VM=nn.einsum('vr,mr->vm', codes, inj.message_MR),
    gate_VM=nn.einsum('vr,mr->vm', codes, inj.predecessor_MR),
  )


@dataclasses.dataclass(frozen=True)
class Factors:
  """What the factored form makes the scores of, float32.

  Attributes:
    message_BSNM: gated messages q of the predecessors of each slot.
    write_BSNM: rows of `Tables.write_VM` of its candidates.
    straight_BSN: <norm * h, head_c> of its candidates.
    scale_BS: |h| / sqrt(D).
  """

  message_BSNM: jax.Array
  write_BSNM: jax.Array
  straight_BSN: jax.Array
  scale_BS: jax.Array


def factors(
  cfg: DSpineConfig,
  params: DSpineParams,
  tables: Tables,
  head_VD: jax.Array,
  pre_BSD: jax.Array,
  candidates_BSN: jax.Array,
  anchor_B: jax.Array,
) -> Factors:
  """The factors of the scores' numerators, s[i, c] without its root."""
  f32 = jnp.float32
  inj = jax.tree.map(lambda x: x.astype(f32), params.injection)
  h = pre_BSD.astype(f32)
  last = cfg.layers - 1
  before = predecessors(candidates_BSN, anchor_B)
  received = nn.dense(
    injection.feature(h, inj.readouts_RD[last], nn.dense), inj.receiver_MR
  )
  g = jax.nn.sigmoid(
    (received + inj.bias_M)[:, :, None] + tables.gate_VM[before]
  )
  rows = jnp.take(head_VD, candidates_BSN, axis=0).astype(f32)
  return Factors(
    message_BSNM=g * tables.message_VM[before],
    write_BSNM=tables.write_VM[candidates_BSN],
    straight_BSN=nn.einsum(
      'bsd,bscd->bsc', h * params.backbone.norm_D.astype(f32), rows
    ),
    scale_BS=injection.safe_norm(h)[..., 0] * h.shape[-1] ** -0.5,
  )


def transition_factored(
  cfg: DSpineConfig,
  params: DSpineParams,
  tables: Tables,
  head_VD: jax.Array,
  pre_BSD: jax.Array,
  candidates_BSN: jax.Array,
  anchor_B: jax.Array,
) -> Float[Array, 'B S N N']:
  """`transition_direct` without a D-wide vector a predecessor.

  With t = |h| / sqrt(D) and q_i the gated message of predecessor i:

    s[i, c] = (<norm * h, head_c> + t <q_i, write_c>)
              / sqrt((|h|^2 + 2 t <q_i, W_O^T h> + t^2 q_i^T G q_i) / D + eps)
  """
  of = factors(cfg, params, tables, head_VD, pre_BSD, candidates_BSN, anchor_B)
  h, q, t = pre_BSD.astype(jnp.float32), of.message_BSNM, of.scale_BS[..., None]
  D, write_DM = h.shape[-1], params.injection.writes_DM[cfg.layers - 1]
  through = nn.einsum('bsim,bscm->bsic', q, of.write_BSNM)
  back = nn.einsum('bsd,dm->bsm', h, write_DM.astype(jnp.float32))
  cross = nn.einsum('bsim,bsm->bsi', q, back)
  square = jnp.sum(nn.dense(q, tables.gram_MM) * q, axis=-1)
  mean = t**2 + (2 * t * cross + t**2 * square) / D
  scores = of.straight_BSN[:, :, None] + t[..., None] * through
  return backbone.cap(
    cfg, scores * jax.lax.rsqrt(mean + cfg.norm_eps)[..., None]
  )


def greedy_path(
  cfg: DSpineConfig,
  params: DSpineParams,
  tables: Tables,
  head_VD: jax.Array,
  pre_BSD: jax.Array,
  candidates_BSN: jax.Array,
  anchor_B: jax.Array,
) -> Int[Array, 'B S']:
  """The walk that takes the best candidate after each, from the factors.

  The root is the same for all c, and the soft cap grows with the score, so the
  numerators alone decide, and the quadratic forms are spared. Not for an
  `output_multiplier` below zero.
  """
  of = factors(cfg, params, tables, head_VD, pre_BSD, candidates_BSN, anchor_B)
  index_BS, _ = transition(
    of.message_BSNM, of.write_BSNM, of.straight_BSN, of.scale_BS
  )
  return jnp.take_along_axis(candidates_BSN, index_BS[..., None], axis=-1)[
    ..., 0
  ]
