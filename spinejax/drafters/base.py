"""What a drafter is: pure functions and a config, all static, and weights."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from spinejax.errors import InputError
from spinejax.sharding import mesh_of
from spinejax.target.model import KVCache

# Context keys and values of every draft layer. Its `length_B` is a watermark
# of its own: rows of context the drafter has really been fed. It may lag
# behind the target's cache, and what lies past it is never attended to.
DraftCache = KVCache


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetView:
  """The target's tables that a drafter borrows, as arguments: closing over
  them would bake them into the compiled program."""

  embed_VD: jax.Array
  head_VD: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
  """All tokens so far; the last valid one is the anchor."""

  tokens_BT: jax.Array
  length_B: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse:
  """A drafting law on N ids a slot; zero elsewhere. One-hot is N = 1."""

  ids_BSN: jax.Array
  probs_BSN: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense:
  """A drafting law over the whole vocabulary."""

  probs_BSV: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Proposal:
  """S proposed tokens.

  Attributes:
    tokens_BS: int32; -1 is "no proposal" and ends the run.
    law: the law the tokens were really drawn from; exactness rests on it.
    confidence_BS: estimated acceptance of each slot if those before it stand;
      ones if there is none. It may depend on the tokens before the slot, but
      where tokens are drawn not on the slot's own: what is verified may hang
      on it (`decode.schedule`).
  """

  tokens_BS: jax.Array
  law: Sparse | Dense
  confidence_BS: jax.Array

  @classmethod
  def certain(
    cls, tokens_BS: jax.Array, confidence_BS: jax.Array | None = None
  ) -> 'Proposal':
    """Tokens drawn without randomness: a one-hot law."""
    ones = jnp.ones(tokens_BS.shape, jnp.float32)
    law = Sparse(tokens_BS[..., None], ones[..., None])
    return cls(tokens_BS, law, ones if confidence_BS is None else confidence_BS)


@dataclasses.dataclass(frozen=True)
class Drafter:
  """A drafting method with its config.

  A record of module-level functions, so that two records built alike are
  equal and hash alike (a closure would make jit trace again).

  Attributes:
    name: the method, as it appears in tables.
    cfg: frozen config; has `slots` (S) and `taps` (layer ids).
    init_cache: (cfg, batch, capacity, dtype) -> DraftCache.
    extend: (cfg, params, cache, features_BKP, count_B) -> DraftCache; takes
      in the target's tapped states of the next `count_B` context tokens.
    propose: (cfg, params, view, cache, history, anchor_B, keys_B, sampling)
      -> Proposal.
  """

  name: str
  cfg: Any
  init_cache: Callable[..., DraftCache]
  extend: Callable[..., DraftCache]
  propose: Callable[..., Proposal]

  @property
  def slots(self) -> int:
    """Proposals a round, S."""
    return self.cfg.slots

  @property
  def taps(self) -> tuple[int, ...]:
    """Target layers whose outputs `extend` reads."""
    return self.cfg.taps


@dataclasses.dataclass(frozen=True)
class DraftModel:
  """A drafter, its weights (None if it has none), and what it was made for.

  Attributes:
    drafter: the method and its config.
    params: weights on the device.
    head_hash: the target head that the weights fit, or None for any.
    card: what is known of its training, as its checkpoint states it.
  """

  drafter: Drafter
  params: object = None
  head_hash: str | None = None
  card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def check(self, target) -> None:
    """Refuses a target that the drafter was not trained for.

    Raises:
      InputError: vocabulary, width, taps or head differ; or its weights lie on
        other devices than the target's.
    """
    cfg, of = self.drafter.cfg, target.cfg
    for field in ('vocab', 'width'):
      if getattr(cfg, field, getattr(of, field)) != getattr(of, field):
        raise InputError(
          f'drafter {self.drafter.name} was made for a target of {field} '
          f'{getattr(cfg, field)}; {target.name} has {getattr(of, field)}'
        )
    if any(not -1 <= t < of.layers - 1 for t in self.drafter.taps):
      raise InputError(
        f'drafter {self.drafter.name} taps layers {self.drafter.taps}; '
        f'{target.name} has outputs 0..{of.layers - 2} before its last'
      )
    if self.head_hash is not None and self.head_hash != target.head_hash:
      raise InputError(
        f'drafter {self.drafter.name} was trained for another target: its '
        f'head hash is {self.head_hash}, that of {target.name} is '
        f'{target.head_hash}'
      )
    weights = jax.tree.leaves(self.params)
    if weights and mesh_of(weights[0]) != target.mesh:
      raise InputError(
        f'drafter {self.drafter.name} lies on other devices than '
        f'{target.name}; load it for this target'
      )


def no_cache(cfg, batch: int, capacity: int, dtype) -> DraftCache:
  """The cache of a drafter without draft layers: a watermark only."""
  del cfg, capacity, dtype
  return KVCache(k=(), v=(), length_B=jnp.zeros((batch,), jnp.int32))


def skip_features(cfg, params, cache, features_BKP, count_B) -> DraftCache:
  """`extend` of a drafter that reads no target features."""
  del cfg, params, features_BKP
  return cache.advance(count_B)
