"""DSpark's objective: the Markov-corrected logits, and the confidence.

  loss = sum_j w_j (a CE(q_j, y_j) + (1 - a) L1_j + c BCE(k_j, 1 - L1_j / 2))
         / sum_j w_j,   L1_j = sum_v |q_j(v) - p_j(v)|

with q the corrected law, p the target's, k the confidence, no gradient through
its aim. Source: arXiv 2607.05147; deepseek-ai/DeepSpec
`deepspec/modeling/dspark/loss.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.drafters import dspark
from spinejax.drafters.dflash import hidden_states
from spinejax.drafters.dspark import DSparkConfig
from spinejax.train.objectives import dflash
from spinejax.train.objectives.base import (
  Objective,
  make_blocks,
  over_vocabulary,
)


@dataclasses.dataclass(frozen=True)
class DSparkLoss(dflash.DFlashLoss):
  """As DFlash's, with DSpark's numbers, and the weight of the confidence."""

  gamma: float | None = 4.0
  cumulative: bool = True
  ce_start: float = 0.1
  ce_end: float = 0.1
  confidence: float = 1.0

  @property
  def needs_teacher(self) -> bool:
    """Whether the loss reads the target's own law."""
    return True  # for the confidence


def loss(cfg, options, params, view, batch, now, total=None, key=None):
  """Terms `ce`, `l1` and `confidence`.

  The confidence should be the probability that its slot is accepted at
  temperature 1, one minus half the L1 distance.
  """
  del key
  blocks = make_blocks(cfg, options, params.backbone, batch, total)
  hidden_BASD = hidden_states(
    cfg, params.backbone, view.embed_VD, blocks.anchor_BA, blocks.context,
    blocks.place,
  )  # fmt: skip
  value, terms = over_vocabulary(
    cfg, blocks, view, hidden_BASD, ce_share=now.ce_share,
    l1_share=1 - now.ce_share,
    low_BASE=dspark.correction(
      cfg, params, view.embed_VD, hidden_BASD, blocks.before_BAS
    ),
    up_VE=params.up_VE,
  )  # fmt: skip
  told = dflash.told(blocks, terms)
  if not cfg.confidence:
    return value, told
  x = dspark.confidence_logits(cfg, params, hidden_BASD, blocks.before_BAS)
  accepted = jnp.clip(1 - terms.l1 / 2, 0, 1)
  told['confidence'] = jax.nn.softplus(x) - x * accepted
  return value + options.confidence * blocks.mean(told['confidence']), told


def init(cfg: DSparkConfig, key: jax.Array, axes_DR=None):
  """Fresh weights, whose correction is small."""
  del axes_DR
  return dspark.random_dspark(cfg, key)


DSPARK = Objective(
  dspark.dspark, DSparkConfig, DSparkLoss, init, dflash.params, loss
)
