"""What the objectives of all methods share."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from spinejax.drafters import backbone
from spinejax.drafters.attention import Context, Place
from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.base import Drafter, TargetView
from spinejax.errors import InputError
from spinejax.train.batch import (
  Batch,
  decay,
  gather_rows,
  label_positions,
  supervised,
)
from spinejax.train.vocab import Aims, Terms, Trained, vocab_loss


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Now:
  """What changes from step to step; scalars, so that no step recompiles.

  Attributes:
    ce_share: of cross-entropy in a mix with L1, which has the rest.
    alignment: beta of DSpine's cosine term.
    replacement: probability that a block of DSpine has true predecessors.
    base_share: of the uncorrected logits' cross-entropy in Domino's.
  """

  ce_share: float = 1.0
  alignment: float = 0.0
  replacement: float = 0.0
  base_share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Objective:
  """How one method is trained; another one is a file and a registry line.

  Attributes:
    drafter: cfg -> Drafter.
    config, options: frozen classes, of the method's shape and of what its loss
      can be told. An options' `at(step, steps)` gives the `Now` of a step;
      `gamma` and `cumulative` say what a slot weighs (`slot_weights`), and
      `needs_teacher` whether there is an L1 term.
    init: (cfg, key, axes_DR) -> trained weights, float32; `axes_DR` are the
      transfer axes of methods with a `rank`, else None.
    params: (weights, codes_VR) -> the drafter's parameters.
    loss: (cfg, options, params, view, batch, now, total, key) -> (value,
      terms): a sum over slots divided by `total`, and what it was made of:
      arrays [B, A, S], or [S] where the name ends in `_S`.
  """

  drafter: Callable[[Any], Drafter]
  config: type
  options: type
  init: Callable[..., Any]
  params: Callable[[Any, jax.Array | None], Any]
  loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


def share_at(start: float, end: float, step: int, steps: int) -> float:
  """A share that goes from `start` to `end` linearly over a run."""
  return start + (end - start) * step / steps


def check_options(options: object, shares: Sequence[str] = ()) -> None:
  """Refuses options that no loss can be made of.

  `gamma` may be None; flags are True or False; all else are finite numbers of
  at least 0, and those of `shares` of at most 1.
  """
  for field in dataclasses.fields(options):
    name, value = field.name, getattr(options, field.name)
    if field.type in ('str', str):
      continue
    if field.type in ('bool', bool):
      if type(value) is not bool:
        raise InputError(f'{name} = {value!r}, expected True or False')
      continue
    if name == 'gamma' and value is None:
      continue
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
      raise InputError(f'{name} = {value!r}, expected a finite number')
    if name == 'gamma' and value <= 0:
      raise InputError(f'gamma = {value}, expected above 0, or None')
    if value < 0 or (name in shares and value > 1):
      what = '0..1' if name in shares else 'at least 0'
      raise InputError(f'{name} = {value!r}, expected {what}')


def slot_weights(cfg: BackboneConfig, options, batch: Batch) -> jax.Array:
  """Weight of each slot, [B, A, S]; 0 where nothing is supervised."""
  mask_BAS = supervised(batch, cfg.slots, cumulative=options.cumulative)
  return mask_BAS * decay(cfg.slots, options.gamma)


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The blocks of a batch, with what is known of their slots.

  Attributes:
    context, place: what they look at, and where they sit.
    anchor_BA: their first tokens.
    label_BAS: the token each slot should propose.
    before_BAS: the token before it: the anchor, then labels.
    teacher_BASD: the target's final-normed states that predict the labels.
    weight_BAS, total: weights of the slots, and what their sum is divided by.
  """

  context: list[Context]
  place: Place
  anchor_BA: jax.Array
  label_BAS: jax.Array
  before_BAS: jax.Array
  teacher_BASD: jax.Array
  weight_BAS: jax.Array
  total: jax.Array

  def mean(self, x_BAS: jax.Array) -> jax.Array:
    """Weighted sum over the slots, over `total`."""
    return jnp.sum(self.weight_BAS * x_BAS) / self.total

  def accuracy(self, hit_BAS: jax.Array) -> jax.Array:
    """Share of hits among the supervised, by slot."""
    seen_BAS = self.weight_BAS > 0
    seen_S = jnp.maximum(jnp.sum(seen_BAS, axis=(0, 1)), 1)
    return jnp.sum(hit_BAS & seen_BAS, axis=(0, 1)) / seen_S


def make_blocks(
  cfg: BackboneConfig,
  options,
  params: BackboneParams,
  batch: Batch,
  total: jax.Array | None,
) -> Blocks:
  """`total`: the sum of all slot weights of a step, if the batch is a part."""
  B, T = batch.tokens_BT.shape
  position_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
  rows = backbone.context_kv(cfg, params, batch.features_BTP, position_BT)
  at_BAS = label_positions(batch, cfg.slots)
  anchor_BA = gather_rows(batch.tokens_BT, batch.anchors_BA)
  label_BAS = gather_rows(batch.tokens_BT, at_BAS)
  weight_BAS = slot_weights(cfg, options, batch)
  if total is None:
    total = jnp.maximum(jnp.sum(weight_BAS), 1.0)
  return Blocks(
    context=[(k.swapaxes(1, 2), v.swapaxes(1, 2)) for k, v in rows],
    place=Place(batch.anchors_BA, batch.anchors_BA),
    anchor_BA=anchor_BA,
    label_BAS=label_BAS,
    before_BAS=jnp.concatenate(
      [anchor_BA[..., None], label_BAS[..., :-1]], axis=-1
    ),
    # The teacher of a label past the end has weight 0; its row is clamped as
    # the label is.
    teacher_BASD=gather_rows(batch.teacher_BTD, jnp.minimum(at_BAS, T - 1) - 1),
    weight_BAS=weight_BAS,
    total=total,
  )


def over_candidates(
  blocks: Blocks, candidates_BASN: jax.Array, scores_BASN: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """What scores of candidates come to, each [B, A, S] but the second.

  Returns:
    Cross-entropy, 0 where the label is no candidate; the log of the law over
    the candidates; and whether the best of them is the label.
  """
  log_r = jax.nn.log_softmax(scores_BASN, axis=-1)
  is_label = candidates_BASN == blocks.label_BAS[..., None]
  ce_BAS = -jnp.sum(jnp.where(is_label, log_r, 0.0), axis=-1)
  best = jnp.argmax(scores_BASN, axis=-1)[..., None]
  hit_BAS = jnp.take_along_axis(is_label, best, axis=-1)[..., 0]
  return ce_BAS, log_r, hit_BAS


def over_vocabulary(
  cfg: BackboneConfig,
  blocks: Blocks,
  view: TargetView,
  hidden_BASD: jax.Array,
  *,
  ce_share: jax.Array | float = 1.0,
  l1_share: jax.Array | float | None = None,
  base_share: jax.Array | float | None = None,
  candidates: int = 1,
  low_BASE: jax.Array | None = None,
  up_VE: jax.Array | None = None,
) -> tuple[jax.Array, Terms]:
  """The mix of the terms of all slots, by their shares; see `vocab_loss`.

  Returns:
    Its value, already over `blocks.total`, and the terms, [B, A, S, ...].
  """

  def rows(x):
    return None if x is None else x.reshape(-1, *x.shape[3:])

  weight_N = rows(blocks.weight_BAS) / blocks.total
  aims = Aims(rows(blocks.label_BAS), weight_N * ce_share)
  if l1_share is not None:
    aims = dataclasses.replace(
      aims,
      teacher_ND=rows(blocks.teacher_BASD),
      l1_weight_N=weight_N * l1_share,
    )
  if base_share is not None:
    aims = dataclasses.replace(aims, base_ce_weight_N=weight_N * base_share)
  trained = Trained(rows(hidden_BASD), rows(low_BASE), up_VE)
  value, terms = vocab_loss(cfg, candidates, view.head_VD, trained, aims)
  shape = blocks.label_BAS.shape
  return value, jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), terms)
