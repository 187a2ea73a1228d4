"""Choosing one path through the candidates of adjacent slots.

scores_BSNN[j, i, c] scores candidate c of slot j after candidate i of slot
j - 1. Drafters differ in how they score; the walk is one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.transition.reference import follow
from spinejax.drafters.base import Proposal, Sparse
from spinejax.errors import InputError
from spinejax.verify.sampling import Sampling, gumbel, peak


def check_candidates(cfg) -> None:
  """Refuses a config with more `candidates` a slot than there are tokens."""
  if cfg.candidates > cfg.vocab:
    raise InputError(
      f'candidates = {cfg.candidates} of a vocabulary of {cfg.vocab}'
    )


def predecessors(
  candidates_BSN: Int[Array, 'B S N'], anchor_B: Int[Array, 'B']
) -> Int[Array, 'B S N']:
  """P_1 = the anchor, N times; P_j = the candidates of slot j - 1."""
  first_B1N = jnp.broadcast_to(
    anchor_B[:, None, None], (anchor_B.shape[0], 1, candidates_BSN.shape[2])
  ).astype(candidates_BSN.dtype)
  return jnp.concatenate([first_B1N, candidates_BSN[:, :-1]], axis=1)


def walk(
  scores_BSNN: Float[Array, 'B S N N'],
  candidates_BSN: Int[Array, 'B S N'],
  keys_B: jax.Array,
  sampling: Sampling,
) -> tuple[Int[Array, 'B S'], Float[Array, 'B S N']]:
  """Left to right: the best candidate after the chosen one, or a sample.

  Every row's choice is made at once, with one noise vector a slot; the chosen
  path is the composition of these S maps from predecessor to candidate, taken
  by a parallel prefix. Only one row of a slot is ever used, so its sample has
  exactly the law softmax(scores / temperature).

  Returns:
    The tokens, and the law over the candidates that each was drawn from.
  """
  B, S, N, _ = scores_BSNN.shape
  if sampling.greedy:
    law_BSNN = None
    choice_BSN = jnp.argmax(scores_BSNN, axis=-1)
  else:
    temperature = sampling.temperature_B[:, None, None, None]
    scaled = scores_BSNN / jnp.where(temperature > 0, temperature, 1.0)
    noise_BSN = gumbel(keys_B, (S, N))[:, :, None]
    noise_BSN = jnp.where(temperature > 0, noise_BSN, 0.0)
    choice_BSN = jnp.argmax(scaled + noise_BSN, axis=-1)
    law_BSNN = jnp.where(
      temperature > 0,
      jax.nn.softmax(scaled, axis=-1),
      jax.nn.one_hot(choice_BSN, N),
    )
  index_BS = follow(choice_BSN)
  tokens_BS = jnp.take_along_axis(candidates_BSN, index_BS[..., None], axis=-1)[
    ..., 0
  ]
  if law_BSNN is None:
    return tokens_BS, jax.nn.one_hot(index_BS, N)
  before_BS = jnp.concatenate(
    [jnp.zeros((B, 1), index_BS.dtype), index_BS[:, :-1]], axis=1
  )
  law_BSN = jnp.take_along_axis(law_BSNN, before_BS[..., None, None], axis=2)[
    :, :, 0
  ]
  return tokens_BS, law_BSN


def path(
  scores_BSNN: Float[Array, 'B S N N'],
  candidates_BSN: Int[Array, 'B S N'],
  keys_B: jax.Array,
  sampling: Sampling,
) -> Proposal:
  """The walk as a proposal, with the law that it drew from.

  Its confidence is the best probability in the row of the chosen predecessor.
  """
  tokens_BS, law_BSN = walk(scores_BSNN, candidates_BSN, keys_B, sampling)
  index_BS = jnp.argmax(candidates_BSN == tokens_BS[..., None], axis=-1)
  before_BS = jnp.pad(index_BS[:, :-1], ((0, 0), (1, 0)))
  row_BSN = jnp.take_along_axis(
    scores_BSNN, before_BS[..., None, None], axis=2
  )[:, :, 0]
  confidence_BS = peak(row_BSN, sampling)
  if sampling.greedy:
    return Proposal.certain(tokens_BS, confidence_BS)
  return Proposal(tokens_BS, Sparse(candidates_BSN, law_BSN), confidence_BS)
