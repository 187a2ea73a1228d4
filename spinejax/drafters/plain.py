"""No drafting: what every other drafter is compared with."""

import dataclasses

import jax.numpy as jnp

from spinejax.drafters.base import Drafter, Proposal, no_cache, skip_features


@dataclasses.dataclass(frozen=True)
class PlainConfig:
  """Attributes:
  slots: empty proposals. 0 is plain decoding; S gives plain decoding whose
    forward pass has the row count of a drafter with S slots, and so the same
    last bits.
  taps: target layers whose outputs a round keeps for another drafter.
  """

  slots: int = 0
  taps: tuple[int, ...] = ()


def propose(cfg, params, view, cache, history, anchor_B, keys_B, sampling):
  """No proposal in any slot."""
  del params, view, cache, history, keys_B, sampling
  return Proposal.certain(jnp.full((anchor_B.shape[0], cfg.slots), -1))


def plain(slots: int = 0, taps: tuple[int, ...] = ()) -> Drafter:
  """Plain decoding as a drafter that proposes nothing."""
  cfg = PlainConfig(slots, taps)
  return Drafter('plain', cfg, no_cache, skip_features, propose)
