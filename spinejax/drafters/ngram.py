"""Prompt lookup: propose what followed the last n tokens the last time.

Training-free; source: apoorvumang/prompt-lookup-decoding.
"""

import dataclasses

import jax.numpy as jnp

from spinejax.drafters.base import Drafter, Proposal, no_cache, skip_features


@dataclasses.dataclass(frozen=True)
class NgramConfig:
  """Attributes:
  slots: proposals a round.
  longest: tokens of context to match; shorter matches are tried too.
  """

  slots: int = 15
  longest: int = 3
  taps: tuple[int, ...] = ()


def propose(cfg, params, view, cache, history, anchor_B, keys_B, sampling):
  """Copies the continuation of the longest, then latest, earlier match.

  Without a match, and past the known tokens, slots stay empty (-1).
  """
  del params, view, cache, anchor_B, keys_B, sampling
  tokens_BT, length_B = history.tokens_BT, history.length_B
  T = tokens_BT.shape[1]
  at_T = jnp.arange(T)
  # matched_BT[t]: tokens before and at t that agree with the context's end.
  matched_BT = jnp.zeros(tokens_BT.shape, jnp.int32)
  running_BT = jnp.ones(tokens_BT.shape, bool)
  for back in range(cfg.longest):
    wanted_B1 = jnp.take_along_axis(
      tokens_BT, jnp.maximum(length_B - 1 - back, 0)[:, None], axis=1
    )
    same_BT = jnp.roll(tokens_BT, back, axis=1) == wanted_B1
    inside_BT = (at_T >= back) & (length_B[:, None] > back)
    running_BT &= same_BT & inside_BT
    matched_BT += running_BT
  earlier_BT = at_T < length_B[:, None] - 1
  score_BT = jnp.where(earlier_BT & (matched_BT > 0), matched_BT * T + at_T, -1)
  best_B1 = jnp.argmax(score_BT, axis=1)[:, None]
  found_B1 = jnp.max(score_BT, axis=1, keepdims=True) >= 0
  source_BS = best_B1 + 1 + jnp.arange(cfg.slots)
  known_BS = found_B1 & (source_BS < length_B[:, None])
  copied_BS = jnp.take_along_axis(
    tokens_BT, jnp.minimum(source_BS, T - 1), axis=1
  )
  return Proposal.certain(jnp.where(known_BS, copied_BS, -1))


def ngram(slots: int = 15, longest: int = 3) -> Drafter:
  """Prompt lookup as a drafter."""
  return Drafter(
    'ngram', NgramConfig(slots, longest), no_cache, skip_features, propose
  )
