"""Choosing tokens slot by slot, where logits depend on the tokens before.

What the tokens add is of low rank: with base the parallel pass' logits,

  logits_k = base_k + up z_k        z_k = f(state, token before slot k)

Drafters differ in f.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from spinejax.drafters.base import Dense, Proposal
from spinejax.target import layers as nn
from spinejax.verify.sampling import Sampling, gumbel, law, peak

# (slot, state, token before it) -> next state, and z or None for no change.
Step = Callable[
  [int, jax.Array, Int[Array, 'B']], tuple[jax.Array, jax.Array | None]
]


def choose(
  base_BSV: Float[Array, 'B S V'],
  up_VE: Float[Array, 'V E'],
  step: Step,
  state: jax.Array,
  anchor_B: Int[Array, 'B'],
  keys_B: jax.Array,
  sampling: Sampling,
) -> Proposal:
  """Left to right: the best token after the chosen ones, or a sample.

  Slots draw with independent noise, from the law that the proposal states.
  """
  B, S, V = base_BSV.shape
  noise_BSV = None if sampling.greedy else gumbel(keys_B, (S, V))
  before_B, tokens, laws, confidence = anchor_B, [], [], []
  for k in range(S):
    state, z_BE = step(k, state, before_B)
    logits_BV = base_BSV[:, k]
    if z_BE is not None:
      logits_BV = logits_BV + nn.dense(z_BE, up_VE, dtype=jnp.float32)
    confidence.append(peak(logits_BV, sampling))
    if not sampling.greedy:
      q_BV = law(logits_BV, sampling)
      laws.append(q_BV)
      # log 0 = -inf: a token without mass can never be drawn.
      logits_BV = jnp.log(q_BV) + noise_BSV[:, k]
    before_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    tokens.append(before_B)
  tokens_BS = jnp.stack(tokens, axis=1)
  confidence_BS = jnp.stack(confidence, axis=1)
  if sampling.greedy:
    return Proposal.certain(tokens_BS, confidence_BS)
  return Proposal(tokens_BS, Dense(jnp.stack(laws, axis=1)), confidence_BS)


def tokens_before(
  anchor_B: Int[Array, 'B'], tokens_BS: Int[Array, 'B S']
) -> Int[Array, 'B S']:
  """The token before each proposal: the anchor, then the proposals."""
  return jnp.concatenate([anchor_B[:, None], tokens_BS[:, :-1]], axis=1)
