"""DSpine's objective: the parallel pass, its refinement, and the features.

With q, p the laws of draft and target, a the share of cross-entropy, w_j the
weights of the slots, r and K_j law and candidates of the refined slot, whose
predecessor is the true token, and f_l,j the features after layer l:

  loss = sum_j w_j (base_j + refined_j + beta CE~ align_j) / sum_j w_j
  base_j = a CE(q_j, y_j) + (1 - a) sum_v |q_j(v) - p_j(v)|
  refined_j = a CE(r_j, y_j) [y_j in K_j]
              + (1 - a) sum_K |r_j(c) - p_j(c) / p_j(K_j)| [p_j(K_j) > 1e-4]
  align_j = sum_l (1 - cos(f_l,j, c(y_j)))
  CE~: the weighted mean of CE(q, y), no gradient

Source: arXiv 2609.36173; sgl-project/SpecForge
`specforge/algorithms/dspine/model.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.injection.reference import normalise
from spinejax.drafters import backbone, dspine
from spinejax.drafters.backbone import BackboneParams
from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
)
from spinejax.errors import InputError
from spinejax.target import layers as nn
from spinejax.train.objectives import dflash
from spinejax.train.objectives.base import (
  Now,
  Objective,
  check_options,
  make_blocks,
  over_candidates,
  over_vocabulary,
  share_at,
)


@dataclasses.dataclass(frozen=True)
class DSpineLoss:
  """Attributes:
  gamma: decay length of the slot weights.
  cumulative: whether a block ends at its first unsupervised slot.
  ce_start, ce_end: share of cross-entropy at the first and last step, linear
    between; the rest is L1. As published 0.1, which learns slowly at first.
  alignment: what is asked of every layer: 'cosine', its features near the
    codes of the labels; or 'token_ce' (an ablation), cross-entropy of its
    states through final norm and head.
  alignment_weight: final weight of that term.
  alignment_warmup_steps: its linear ramp, in optimiser steps.
  replacement_probability, _hold, _end, _layers: true predecessors in the
    first layers of some blocks, early in training: the probability is held
    for the first share of the run and falls to 0 at the second.
  candidate_mass: least teacher mass on the candidates for the refined L1.
  """

  gamma: float | None = 7.0
  cumulative: bool = True
  ce_start: float = 0.1
  ce_end: float = 0.1
  alignment: str = 'cosine'
  alignment_weight: float = 0.5
  alignment_warmup_steps: int = 146
  replacement_probability: float = 0.5
  replacement_hold: float = 1 / 6
  replacement_end: float = 1 / 3
  replacement_layers: int = 3
  candidate_mass: float = 1e-4

  def __post_init__(self):
    check_options(self, shares=(
      'ce_start', 'ce_end', 'replacement_probability', 'replacement_hold',
      'replacement_end', 'candidate_mass',
    ))  # fmt: skip
    if self.replacement_hold >= self.replacement_end:
      raise InputError(
        f'replacement_hold = {self.replacement_hold}, expected less than '
        f'replacement_end = {self.replacement_end}'
      )
    if self.alignment not in ('cosine', 'token_ce'):
      raise InputError(
        f'alignment = {self.alignment!r}, expected cosine or token_ce'
      )
    if self.alignment_warmup_steps < 1:
      raise InputError(
        f'alignment_warmup_steps = {self.alignment_warmup_steps}, expected at '
        'least 1'
      )

  @property
  def needs_teacher(self) -> bool:
    """Whether the loss reads the target's own law."""
    return True  # for the refined term

  def at(self, step: int, steps: int) -> Now:
    """The weights of the terms at a step."""
    left = self.replacement_end - step / steps
    slope = self.replacement_end - self.replacement_hold
    ramp = min(step / self.alignment_warmup_steps, 1.0)
    return Now(
      ce_share=share_at(self.ce_start, self.ce_end, step, steps),
      alignment=self.alignment_weight * ramp,
      replacement=self.replacement_probability
      * min(max(left / slope, 0.0), 1.0),
    )


def loss(cfg, options, params, view, batch, now, total=None, key=None):
  """The objective; `key` draws the blocks with true predecessors."""
  replace_BA = None
  if options.replacement_probability:
    replace_BA = jax.random.bernoulli(
      key, now.replacement, batch.anchors_BA.shape
    )
  return loss_of(cfg, options, params, view, batch, now, total, replace_BA)


def loss_of(cfg, options, params, view, batch, now, total, replace_BA):
  """Terms `ce`, `l1`, `refinement`, `alignment`.

  Args:
    replace_BA: blocks whose predecessors are the true tokens' codes in the
      first layers; or None.
  """
  blocks = make_blocks(cfg, options, params.backbone, batch, total)
  out = dspine.draft(
    cfg, params, view.embed_VD, blocks.anchor_BA, blocks.context, blocks.place,
    None if replace_BA is None else blocks.before_BAS, replace_BA,
    options.replacement_layers,
  )  # fmt: skip
  l1_share = 1 - now.ce_share
  value, terms = over_vocabulary(
    cfg,
    blocks,
    view,
    backbone.proposing(cfg, out.hidden_BAKD),
    ce_share=now.ce_share,
    l1_share=l1_share,
    candidates=cfg.candidates,
  )
  told = dflash.told(blocks, terms)
  if cfg.refine:
    ce, l1, hit_BAS = _refined(
      cfg, options, params, view, blocks, terms,
      backbone.proposing(cfg, out.pre_BAKD),
    )  # fmt: skip
    told['refinement'] = now.ce_share * ce + l1_share * l1
    told['refined_accuracy_S'] = blocks.accuracy(hit_BAS)
    value += blocks.mean(told['refinement'])
  if options.alignment_weight:
    scale = now.alignment * lax.stop_gradient(blocks.mean(terms.ce))
    if options.alignment == 'cosine':
      told['alignment'] = _alignment(params.codes_VR, out, blocks.label_BAS)
      value += scale * blocks.mean(told['alignment'])
    else:
      more, told['alignment'] = _token_ce(
        cfg, params.backbone, blocks, view, out
      )
      value += scale * more
  return value, told


def _refined(cfg, options, params, view, blocks, terms, pre_BASD):
  """Cross-entropy and L1 on the candidates, and whether the best is right.

  The predecessor is the true token's code.
  """
  u = dspine.code(params.codes_VR, blocks.before_BAS, jnp.float32)
  refined = dspine.refine(cfg, params, pre_BASD, u)
  ids = terms.candidates
  head = jnp.take(view.head_VD, ids, axis=0).astype(jnp.float32)
  scores = backbone.cap(cfg, nn.einsum('basd,basnd->basn', refined, head))
  ce, log_r, hit_BAS = over_candidates(blocks, ids, scores)
  mass = jnp.sum(terms.teacher, axis=-1, keepdims=True)
  aim = terms.teacher / jnp.maximum(mass, 1e-12)
  l1 = jnp.sum(jnp.abs(jnp.exp(log_r) - aim), axis=-1)
  l1 = jnp.where(mass[..., 0] > options.candidate_mass, l1, 0.0)
  return ce, l1, hit_BAS


def _token_ce(cfg, base: BackboneParams, blocks, view, out: dspine.Draft):
  """Cross-entropy of every layer's states: value and sum over the layers."""
  value = ce = 0.0
  for h_BAKD in out.states_BAKD:
    hidden = nn.rms_norm(h_BAKD, base.norm_D, cfg.norm_eps)
    hidden = backbone.proposing(cfg, hidden)
    more, terms = over_vocabulary(cfg, blocks, view, hidden)
    value, ce = value + more, ce + terms.ce
  return value, ce


def _alignment(codes_VR, out: dspine.Draft, label_BAS) -> jax.Array:
  """sum over layers of 1 - cos(feature of slot j, code of its label)."""
  code_BASR = jnp.take(codes_VR, label_BAS, axis=0).astype(jnp.float32)
  total = 0.0
  for f_BAKR in out.features_BAKR:
    f = normalise(f_BAKR[:, :, 1:].astype(jnp.float32))
    total = total + 1.0 - jnp.sum(f * code_BASR, axis=-1)
  return total


def init(cfg: DSpineConfig, key: jax.Array, axes_DR: jax.Array):
  """Readouts at D^T; writes, predecessor gate and bias at 0.

  So that the fresh drafter is a block-causal DFlash. The other matrices are
  uniform in +-1 / sqrt(fan-in), the published code's default.
  """
  base_key, key = jax.random.split(key)
  message, receiver = jax.random.uniform(
    key, (2, cfg.message, cfg.rank), jnp.float32, -1.0, 1.0
  ) * (cfg.rank**-0.5)
  layers = range(cfg.layers)
  injection = Injection(
    readouts_RD=tuple(jnp.asarray(axes_DR.T, jnp.float32) for _ in layers),
    writes_DM=tuple(jnp.zeros((cfg.width, cfg.message)) for _ in layers),
    message_MR=message,
    receiver_MR=receiver,
    predecessor_MR=jnp.zeros((cfg.message, cfg.rank)),
    bias_M=jnp.zeros((cfg.message,)),
  )
  return {
    'backbone': backbone.random_backbone(cfg, base_key),
    'injection': injection,
  }


def params(weights, codes_VR: jax.Array) -> DSpineParams:
  """The weights with the token codes."""
  return DSpineParams(weights['backbone'], weights['injection'], codes_VR)


DSPINE = Objective(dspine.dspine, DSpineConfig, DSpineLoss, init, params, loss)
