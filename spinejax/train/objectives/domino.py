"""Domino's objective: cross-entropy of corrected and of base logits.

  loss = sum_j w_j ((1 - b) CE(q_j, y_j) + b CE(q'_j, y_j)) / sum_j w_j

with q the corrected law, q' that of the base logits, b falling from 1 to 0.
Source: sgl-project/SpecForge `specforge/algorithms/domino/` and
`specforge/algorithms/common/dflash_family_model.py` (arXiv 2605.29707).
"""

import dataclasses

import jax

from spinejax.drafters import backbone, domino
from spinejax.drafters.dflash import hidden_states
from spinejax.drafters.domino import DominoConfig
from spinejax.train.objectives import dflash
from spinejax.train.objectives.base import (
  Now,
  Objective,
  check_options,
  make_blocks,
  over_vocabulary,
)


@dataclasses.dataclass(frozen=True)
class DominoLoss:
  """Attributes:
  gamma: decay length of the slot weights, or None for none.
  cumulative: whether a block ends at its first unsupervised slot.
  base_start: share of the base logits' cross-entropy at the first step; it
    falls to 0 linearly.
  base_end: share of the run after which it is 0.
  """

  gamma: float | None = 7.0
  cumulative: bool = False
  base_start: float = 1.0
  base_end: float = 0.5

  def __post_init__(self):
    check_options(self, shares=('base_start', 'base_end'))

  @property
  def needs_teacher(self) -> bool:
    """Whether the loss reads the target's own law."""
    return False

  def at(self, step: int, steps: int) -> Now:
    """The weights of the terms at a step."""
    over = max(1, int(steps * self.base_end))
    return Now(base_share=self.base_start * min(max(1 - step / over, 0), 1))


def loss(cfg, options, params, view, batch, now, total=None, key=None):
  """Terms `ce` of the corrected logits and `base_ce`."""
  del key
  blocks = make_blocks(cfg, options, params.backbone, batch, total)
  hidden_BAKD = hidden_states(
    cfg, params.backbone, view.embed_VD, blocks.anchor_BA, blocks.context,
    blocks.place,
  )  # fmt: skip
  hidden_BASD = backbone.proposing(cfg, hidden_BAKD)
  value, terms = over_vocabulary(
    cfg, blocks, view, hidden_BASD,
    ce_share=1 - now.base_share, base_share=now.base_share,
    low_BASE=domino.correction(
      cfg, params, view.embed_VD, hidden_BASD, blocks.before_BAS
    ),
    up_VE=params.up_VE,
  )  # fmt: skip
  return value, dflash.told(blocks, terms)


def init(cfg: DominoConfig, key: jax.Array, axes_DR=None):
  """Fresh weights, whose correction is small."""
  del axes_DR
  return domino.random_domino(cfg, key)


DOMINO = Objective(
  domino.domino, DominoConfig, DominoLoss, init, dflash.params, loss
)
