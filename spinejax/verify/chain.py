"""Acceptance of a chain of proposals: exact for any drafting law.

Every slot is tested at once and the accepted run is the unbroken prefix of
passes (Leviathan et al. 2023; Chen et al. 2023; z-lab/dflash `model.py`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.axes import Logits_BKV, Seed_B
from spinejax.drafters.base import Dense, Proposal, Sparse
from spinejax.target.packing import Packing
from spinejax.verify.sampling import (
  Sampling,
  Stream,
  gumbel,
  law,
  round_keys,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Verdict:
  """Outcome of one verification.

  Attributes:
    accepted_B: proposals accepted, 0..S, before stop tokens and caps cut the
      run; never counts `next_B`.
    next_B: the token that the target itself adds after them.
  """

  accepted_B: jax.Array
  next_B: jax.Array


def verify(
  logits_BKV: Logits_BKV,
  proposal: Proposal,
  sampling: Sampling,
  seed_B: Seed_B,
  position_B: jax.Array,
  packing: Packing | None = None,
) -> Verdict:
  """Which proposals stand, and the token after them.

  The emitted tokens have exactly the target's law (greedy: are its argmax),
  whatever the drafter proposed, as long as `proposal.law` is the law that its
  tokens were drawn from. A proposal of -1 is no proposal: the run ends there,
  and the next token is drawn from the target's own law.

  Args:
    logits_BKV: the target's logits; row j follows the anchor and j proposals.
      With a packing, [Q, V].
    proposal: S = K - 1 tokens and the law they were drawn from.
    sampling: the target's sampling settings.
    seed_B: per-request seeds.
    position_B: absolute position of the anchor; makes the randomness fresh.
    packing: where the logits of a request's rows are. A row that was not
      packed may be of no proposal.
  """
  if sampling.greedy:
    best_BK = jnp.argmax(logits_BKV, axis=-1).astype(jnp.int32)
    if packing is not None:
      best_BK = packing.unpack(best_BK)
    passed_BS = proposal.tokens_BS == best_BK[:, :-1]
    accepted_B = _run_length(passed_BS)
    return Verdict(accepted_B, _pick(best_BK, accepted_B))
  tokens_BS = jnp.maximum(proposal.tokens_BS, 0)
  if packing is None:
    p_BKV = law(logits_BKV, sampling)
    p_BS = jnp.take_along_axis(p_BKV[:, :-1], tokens_BS[..., None], axis=-1)
    p_BS = p_BS[..., 0]
  else:
    p_QV = law(logits_BKV, sampling.of(packing.request_Q))
    p_BS = p_QV[packing.place_BK[:, :-1], tokens_BS]
  q_BS = _probability(proposal)
  keys_B = round_keys(seed_B, position_B, Stream.ACCEPT)
  u_BS = jax.vmap(lambda k: jax.random.uniform(k, p_BS.shape[1:]))(keys_B)
  passed_BS = accept(u_BS, p_BS, q_BS) & (proposal.tokens_BS >= 0)
  accepted_B = _run_length(passed_BS)
  if packing is None:
    p_BV = _pick(p_BKV, accepted_B)
  else:
    p_BV = p_QV[_pick(packing.place_BK, accepted_B)]
  next_BV = residual(p_BV, proposal, accepted_B)
  noise_BV = gumbel(
    round_keys(seed_B, position_B, Stream.RESIDUAL), p_BV.shape[1:]
  )
  # log 0 = -inf: a token without mass can never be drawn.
  next_B = jnp.argmax(jnp.log(next_BV) + noise_BV, axis=-1)
  return Verdict(accepted_B, next_B.astype(jnp.int32))


def accept(u: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
  """Whether a proposal of drafting law q stands: u q < p, without division."""
  return u * q < p


def residual(
  p_BV: jax.Array, proposal: Proposal, accepted_B: jax.Array
) -> jax.Array:
  """Law of the token after the accepted run, float32 [B, V].

  norm(max(p - q, 0)) with the law of the rejected slot; p itself after a full
  run, and where rounding leaves no mass.
  """
  S = proposal.tokens_BS.shape[1]
  if S == 0:
    return p_BV
  slot_B = jnp.minimum(accepted_B, S - 1)
  match proposal.law:
    case Dense(probs_BSV):
      rest_BV = p_BV - _pick(probs_BSV, slot_B)
    case Sparse(ids_BSN, probs_BSN):
      ids_BN, probs_BN = _pick(ids_BSN, slot_B), _pick(probs_BSN, slot_B)
      # An id of -1 carries no mass; "drop" keeps it from wrapping around.
      ids_BN = jnp.where(ids_BN < 0, p_BV.shape[1], ids_BN)
      # Mapped over the batch, which may be split over devices.
      rest_BV = jax.vmap(lambda p, at, q: p.at[at].add(-q, mode='drop'))(
        p_BV, ids_BN, probs_BN
      )
  rest_BV = jnp.maximum(rest_BV, 0.0)
  mass_B1 = jnp.sum(rest_BV, axis=-1, keepdims=True)
  rejected_B1 = (accepted_B < S)[:, None]
  # A slot without a proposal rejected nothing.
  rejected_B1 &= (_pick(proposal.tokens_BS, slot_B) >= 0)[:, None]
  safe_B1 = jnp.where(mass_B1 > 0, mass_B1, 1.0)
  return jnp.where(rejected_B1 & (mass_B1 > 0), rest_BV / safe_B1, p_BV)


def _probability(proposal: Proposal) -> jax.Array:
  """The drafting law's probability of each proposed token [B, S]."""
  match proposal.law:
    case Dense(probs_BSV):
      at = jnp.maximum(proposal.tokens_BS, 0)[..., None]
      return jnp.take_along_axis(probs_BSV, at, axis=-1)[..., 0]
    case Sparse(ids_BSN, probs_BSN):
      same = ids_BSN == proposal.tokens_BS[..., None]
      return jnp.sum(jnp.where(same, probs_BSN, 0.0), axis=-1)


def _run_length(passed_BS: jax.Array) -> jax.Array:
  """Length of the unbroken run of passes from the first slot on."""
  return jnp.sum(jnp.cumprod(passed_BS.astype(jnp.int32), axis=1), axis=1)


def _pick(x: jax.Array, index_B: jax.Array) -> jax.Array:
  """x[b, index_B[b]] of x [B, rows, ...]."""
  return jax.vmap(lambda row, i: row[i])(x, index_B)
