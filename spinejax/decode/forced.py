"""Rounds whose acceptance is given: for the time of a shape without weights.

Draft and verification run as ever; only the number of accepted proposals is
drawn from a given distribution in the place of the verdict. What is emitted
means nothing, and whatever is measured so is *synthetic*.
"""

import dataclasses

import jax
import jax.numpy as jnp
import scipy.optimize

from spinejax.decode import round as rounds
from spinejax.errors import InputError
from spinejax.verify.chain import verify
from spinejax.verify.sampling import Stream, round_keys


def step(cfg, drafter, params, state, sampling, **packed) -> rounds.Round:
  """`round.step` that accepts as `params.extra` says.

  That is survival_S, P(proposals 1..j are all accepted) for j = 1..S.

  Args:
    packed: how rows are packed; see `round.step`. Of what a budget cuts off,
      nothing is accepted.
  """

  def judge(logits, proposal, sampling, seed_B, position_B, packing):
    # The token after the run still hangs on all logits: nothing is left out.
    verdict = verify(logits, proposal, sampling, seed_B, position_B, packing)
    keys_B = round_keys(seed_B, position_B, Stream.ACCEPT)
    u_B1 = jax.vmap(lambda key: jax.random.uniform(key, (1,)))(keys_B)
    there_BS = jnp.cumprod(proposal.tokens_BS >= 0, axis=1) > 0
    accepted_B = jnp.sum((u_B1 < params.extra) & there_BS, axis=1)
    return dataclasses.replace(verdict, accepted_B=accepted_B)

  return rounds.step(
    cfg, drafter, params, state, sampling, judge=judge, **packed
  )


def survival_of_mean(tokens_per_round: float, slots: int) -> list[float]:
  """The survival with that mean at which every slot is accepted equally often.

  Each slot is accepted with one probability a, if those before it are:
  1 + a + a^2 + ... + a^S = tokens a round.

  Raises:
    InputError: no such mean can be had of so many slots.
  """
  if not 1 <= tokens_per_round <= slots + 1:
    raise InputError(
      f'tokens_per_round = {tokens_per_round}, expected 1..{slots + 1} of '
      f'{slots} slots'
    )

  def survival(a):
    return [a**j for j in range(1, slots + 1)]

  def beyond(a):
    return 1 + sum(survival(a)) - tokens_per_round

  return survival(scipy.optimize.brentq(beyond, 0.0, 1.0))
