"""DFlash's objective: cross-entropy, each slot for itself.

Source: arXiv 2602.06036; sgl-project/SpecForge
`specforge/algorithms/common/dflash_family_model.py`.
"""

import dataclasses

import jax

from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig, random_backbone
from spinejax.drafters.dflash import dflash, hidden_states
from spinejax.train.objectives.base import (
  Blocks,
  Now,
  Objective,
  check_options,
  make_blocks,
  over_vocabulary,
  share_at,
)
from spinejax.train.vocab import Terms


@dataclasses.dataclass(frozen=True)
class DFlashLoss:
  """Attributes:
  gamma: decay length of the slot weights, or None for none.
  cumulative: whether a block ends at its first unsupervised slot.
  ce_start, ce_end: share of cross-entropy at the first and last step, linear
    between; the rest is the L1 distance to the target's law. As published: 1.
  """

  gamma: float | None = 7.0
  cumulative: bool = False
  ce_start: float = 1.0
  ce_end: float = 1.0

  def __post_init__(self):
    check_options(self, shares=('ce_start', 'ce_end'))

  @property
  def needs_teacher(self) -> bool:
    """Whether the loss reads the target's own law."""
    return min(self.ce_start, self.ce_end) < 1

  def at(self, step: int, steps: int) -> Now:
    """The weights of the terms at a step."""
    return Now(ce_share=share_at(self.ce_start, self.ce_end, step, steps))


def loss(cfg, options, params, view, batch, now, total=None, key=None):
  """Terms `ce` and, with a share of it, `l1`."""
  del key
  blocks = make_blocks(cfg, options, params, batch, total)
  hidden_BAKD = hidden_states(
    cfg, params, view.embed_VD, blocks.anchor_BA, blocks.context, blocks.place
  )
  hidden_BASD = backbone.proposing(cfg, hidden_BAKD)
  value, terms = over_vocabulary(
    cfg, blocks, view, hidden_BASD, **shares(options, now)
  )
  return value, told(blocks, terms)


def shares(options: DFlashLoss, now: Now) -> dict[str, jax.Array]:
  """Shares of the terms; no L1 is computed where it never has any."""
  shares = {'ce_share': now.ce_share}
  return (
    shares | {'l1_share': 1 - now.ce_share} if options.needs_teacher else shares
  )


def told(blocks: Blocks, terms: Terms) -> dict[str, jax.Array]:
  """What a step tells of the terms over the vocabulary."""
  hit_BAS = terms.candidates[..., 0] == blocks.label_BAS
  each = {'ce': terms.ce, 'l1': terms.l1, 'base_ce': terms.base_ce}
  return {name: x for name, x in each.items() if x is not None} | {
    'weights': blocks.weight_BAS,
    'accuracy_S': blocks.accuracy(hit_BAS),
  }


def init(cfg: BackboneConfig, key: jax.Array, axes_DR=None):
  """Fresh weights."""
  del axes_DR
  return random_backbone(cfg, key)


def params(weights, codes_VR=None):
  """The weights are the parameters."""
  del codes_VR
  return weights


DFLASH = Objective(dflash, BackboneConfig, DFlashLoss, init, params, loss)
