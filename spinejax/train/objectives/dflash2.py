"""DFlash2's objective: DFlash's, and cross-entropy of the selector.

  loss = sum_j w_j (CE(q_j, y_j) + s CE(r_j, y_j) [y_j in K_j]) / sum_j w_j

with q the draft's law, K_j its candidates, r the selector's law over them after
the true token before, s the weight `selector`, w_j the weights of the slots.
Its authors' objective is unpublished; this is that of sgl-project/SpecForge
(`DFlash2.md`): the selector learns to choose among the largest logits after
the true token, wherever the label is one of them.
"""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.drafters import backbone, dflash2
from spinejax.drafters.dflash2 import DFlash2Config
from spinejax.target import layers as nn
from spinejax.train.objectives import dflash
from spinejax.train.objectives.base import (
  Objective,
  make_blocks,
  over_candidates,
  over_vocabulary,
)


@dataclasses.dataclass(frozen=True)
class DFlash2Loss(dflash.DFlashLoss):
  """DFlash's, and the weight of the selector's cross-entropy."""

  selector: float = 1.0


def loss(cfg, options, params, view, batch, now, total=None, key=None):
  """Terms `ce`, `selector` and, with a share of it, `l1`."""
  del key
  blocks = make_blocks(cfg, options, params.backbone, batch, total)
  hidden_BAKD = dflash2.hidden_states(
    cfg, params, view.embed_VD, blocks.anchor_BA, blocks.context, blocks.place
  )
  hidden_BASD = backbone.proposing(cfg, hidden_BAKD)
  value, terms = over_vocabulary(
    cfg, blocks, view, hidden_BASD, candidates=cfg.candidates,
    **dflash.shares(options, now),
  )  # fmt: skip
  told = dflash.told(blocks, terms)
  # Again, for the gradient: the terms let none through.
  ids = terms.candidates
  head = jnp.take(view.head_VD, ids, axis=0)
  unary = nn.einsum('basd,basnd->basn', hidden_BASD, head, dtype=jnp.float32)
  scores = dflash2.selector_scores(
    cfg, params, backbone.cap(cfg, unary), hidden_BASD, blocks.before_BAS, ids
  )
  told['selector'], _, hit_BAS = over_candidates(blocks, ids, scores)
  told['selected_accuracy_S'] = blocks.accuracy(hit_BAS)
  return value + options.selector * blocks.mean(told['selector']), told


def init(cfg: DFlash2Config, key: jax.Array, axes_DR=None):
  """Fresh weights: a DFlash, whose convolutions and selector do nothing."""
  del axes_DR
  return dflash2.random_dflash2(cfg, key)


DFLASH2 = Objective(
  dflash2.dflash2, DFlash2Config, DFlash2Loss, init, dflash.params, loss
)
