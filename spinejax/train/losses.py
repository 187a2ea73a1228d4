"""Training objectives of DFlash and DSpine.

Sources: sgl-project/SpecForge `specforge/algorithms/common/
dflash_family_model.py` and `specforge/algorithms/dspine/model.py`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from spinejax.drafters import backbone, dspine
from spinejax.drafters.backbone import BackboneConfig, BackboneParams, Place
from spinejax.drafters.base import TargetView
from spinejax.drafters.dflash import hidden_states
from spinejax.drafters.dspine import DSpineConfig, DSpineParams
from spinejax.drafters.transition import top_candidates
from spinejax.target import layers as nn
from spinejax.train.batch import (
  Batch,
  decay,
  gather_rows,
  label_positions,
  supervised,
)

_ROWS_PER_CHUNK = 2048


@dataclasses.dataclass(frozen=True)
class DFlashLoss:
  """Attributes:
  gamma: decay length of the slot weights, or None for none.
  """

  gamma: float | None = 7.0


@dataclasses.dataclass(frozen=True)
class DSpineLoss:
  """Attributes:
  ce_weight: share w of cross-entropy; L1 has 1 - w.
  gamma: decay length of the slot weights.
  alignment_weight: final weight of the cosine term.
  alignment_warmup_steps: its linear ramp, in optimiser steps.
  replacement_probability, _hold, _end, _layers: true predecessors in the
    first layers of some blocks, early in training: the probability is held
    for the first share of the run and falls to 0 at the second.
  candidate_mass: least teacher mass on the candidates for the refined L1.
  """

  ce_weight: float = 0.1
  gamma: float = 7.0
  alignment_weight: float = 0.5
  alignment_warmup_steps: int = 146
  replacement_probability: float = 0.5
  replacement_hold: float = 1 / 6
  replacement_end: float = 1 / 3
  replacement_layers: int = 3
  candidate_mass: float = 1e-4

  def alignment(self, step: int) -> float:
    """beta at an optimiser step."""
    return self.alignment_weight * min(step / self.alignment_warmup_steps, 1.0)

  def replacement(self, step: int, total: int) -> float:
    """Probability that a block has its predecessors replaced."""
    left = self.replacement_end - step / total
    slope = self.replacement_end - self.replacement_hold
    return self.replacement_probability * min(max(left / slope, 0.0), 1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VocabTerms:
  """Per-slot terms over the whole vocabulary, [rows]; candidates [rows, N],
  their teacher probabilities, and whether the argmax is the label."""

  ce: jax.Array
  l1: jax.Array
  candidates: jax.Array
  teacher: jax.Array
  correct: jax.Array


def vocab_terms(
  cfg: BackboneConfig,
  head_VD: jax.Array,
  hidden: jax.Array,
  teacher: jax.Array,
  label: jax.Array,
  candidates: int,
) -> VocabTerms:
  """Cross-entropy, L1 to the teacher and candidates of rows [rows, D].

  Rows go in chunks, whose logits are made again in the backward pass: all of
  them at once would be the largest arrays of the step by far.
  """
  rows = hidden.shape[0]
  pad = -rows % min(_ROWS_PER_CHUNK, rows)

  def chunked(x):
    x = jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, min(_ROWS_PER_CHUNK, rows), *x.shape[1:])

  @jax.checkpoint
  def terms(part):
    hidden, teacher, label = part
    logits = backbone.logits_of(cfg, hidden, head_VD)
    log_q = jax.nn.log_softmax(logits, axis=-1)
    p = jax.nn.softmax(nn.dense(teacher, head_VD, dtype=jnp.float32), axis=-1)
    frozen = lax.stop_gradient(logits)
    ids = top_candidates(frozen, candidates)
    return VocabTerms(
      ce=-jnp.take_along_axis(log_q, label[:, None], axis=-1)[:, 0],
      l1=jnp.sum(jnp.abs(jnp.exp(log_q) - p), axis=-1),
      candidates=ids,
      teacher=jnp.take_along_axis(p, ids, axis=-1),
      correct=jnp.argmax(frozen, axis=-1) == label,
    )

  out = lax.map(terms, (chunked(hidden), chunked(teacher), chunked(label)))
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], out)


def _slots_as_rows(x: jax.Array) -> jax.Array:
  return x.reshape(-1, *x.shape[3:])


def _context(cfg, params: BackboneParams, batch: Batch, view: TargetView):
  """Context K/V of the batch, places, labels and teacher rows."""
  B, T = batch.tokens_BT.shape
  position_BT = jnp.broadcast_to(jnp.arange(T), (B, T))
  rows = backbone.context_kv(cfg, params, batch.features_BTP, position_BT)
  context = [(k.swapaxes(1, 2), v.swapaxes(1, 2)) for k, v in rows]
  place = Place(batch.anchors_BA, batch.anchors_BA)
  at_BAS = label_positions(batch, cfg.slots)
  label_BAS = gather_rows(batch.tokens_BT, at_BAS)
  # The teacher of a label past the end has weight 0; its row is clamped as
  # the label is.
  last = batch.tokens_BT.shape[1] - 1
  teacher_BASD = gather_rows(batch.teacher_BTD, jnp.minimum(at_BAS, last) - 1)
  anchor_BA = gather_rows(batch.tokens_BT, batch.anchors_BA)
  return context, place, label_BAS, teacher_BASD, anchor_BA


def dflash_loss(
  cfg: BackboneConfig,
  loss: DFlashLoss,
  params: BackboneParams,
  view: TargetView,
  batch: Batch,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Weighted cross-entropy, per token masks.

  Returns:
    The loss, and its terms: `ce` [B, A, S], `weights`, accuracy by slot.
  """
  context, place, label_BAS, teacher_BASD, anchor_BA = _context(
    cfg, params, batch, view
  )
  hidden_BAKD = hidden_states(
    cfg, params, view.embed_VD, anchor_BA, context, place
  )
  terms = vocab_terms(
    cfg,
    view.head_VD,
    _slots_as_rows(hidden_BAKD[:, :, 1:]),
    _slots_as_rows(teacher_BASD),
    _slots_as_rows(label_BAS),
    1,
  )
  mask_BAS = supervised(batch, cfg.slots, cumulative=False)
  weight_BAS = mask_BAS * decay(cfg.slots, loss.gamma)
  ce_BAS = terms.ce.reshape(weight_BAS.shape)
  total = jnp.maximum(jnp.sum(weight_BAS), 1.0)
  value = jnp.sum(weight_BAS * ce_BAS) / total
  hit_BAS = terms.correct.reshape(mask_BAS.shape)
  return value, {
    'ce': ce_BAS,
    'weights': weight_BAS,
    'accuracy_S': _by_slot(hit_BAS, mask_BAS),
  }


def _by_slot(hit_BAS, mask_BAS):
  seen_S = jnp.maximum(jnp.sum(mask_BAS, axis=(0, 1)), 1.0)
  return jnp.sum(hit_BAS * mask_BAS, axis=(0, 1)) / seen_S


def dspine_loss(
  cfg: DSpineConfig,
  loss: DSpineLoss,
  params: DSpineParams,
  view: TargetView,
  batch: Batch,
  beta: jax.Array | float,
  ce_weight: jax.Array | float,
  replace_BA: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Base and refined terms and the layerwise cosine.

  Args:
    beta: weight of the cosine term at this step.
    ce_weight: share of cross-entropy at this step.
    replace_BA: blocks with true predecessors in the first layers.

  Returns:
    The loss, and per-slot terms `ce`, `l1`, `refinement`, `alignment`,
    `weights` [B, A, S] and accuracies by slot.
  """
  base = params.backbone
  context, place, label_BAS, teacher_BASD, anchor_BA = _context(
    cfg, base, batch, view
  )
  gold_BAS = jnp.concatenate([anchor_BA[..., None], label_BAS[..., :-1]], -1)
  out = dspine.draft(
    cfg, params, view.embed_VD, anchor_BA, context, place,
    None if replace_BA is None else gold_BAS, replace_BA,
    loss.replacement_layers,
  )  # fmt: skip
  terms = vocab_terms(
    cfg,
    view.head_VD,
    _slots_as_rows(out.hidden_BAKD[:, :, 1:]),
    _slots_as_rows(teacher_BASD),
    _slots_as_rows(label_BAS),
    cfg.candidates,
  )
  mask_BAS = supervised(batch, cfg.slots, cumulative=True)
  weight_BAS = mask_BAS * decay(cfg.slots, loss.gamma)
  refined, refined_hit = _refined(
    cfg, loss, params, view.head_VD, terms,
    _slots_as_rows(out.pre_BAKD[:, :, 1:]),
    _slots_as_rows(gold_BAS), _slots_as_rows(label_BAS), ce_weight,
  )  # fmt: skip
  align_BAS = _alignment(params.codes_VR, out, label_BAS)
  shape = weight_BAS.shape
  ce, l1 = terms.ce.reshape(shape), terms.l1.reshape(shape)
  total = jnp.maximum(jnp.sum(weight_BAS), 1.0)

  def mean(x_BAS):
    return jnp.sum(weight_BAS * x_BAS) / total

  scale = beta * lax.stop_gradient(mean(ce))
  base_term = ce_weight * ce + (1 - ce_weight) * l1
  value = mean(base_term + refined.reshape(shape) + scale * align_BAS)
  return value, {
    'ce': ce,
    'l1': l1,
    'refinement': refined.reshape(shape),
    'alignment': align_BAS,
    'weights': weight_BAS,
    'accuracy_S': _by_slot(terms.correct.reshape(shape), mask_BAS),
    'refined_accuracy_S': _by_slot(refined_hit.reshape(shape), mask_BAS),
  }


def _refined(cfg, loss, params, head_VD, terms, pre, gold, label, ce_weight):
  """The refined term of rows [rows, D], and whether its best is the label."""
  u = dspine.code(params.codes_VR, gold, jnp.float32)
  refined = dspine.refine(cfg, params, pre, u)
  ids = terms.candidates
  rows = jnp.take(head_VD, ids, axis=0).astype(jnp.float32)
  scores = backbone.cap(cfg, nn.einsum('sd,snd->sn', refined, rows))
  log_r = jax.nn.log_softmax(scores, axis=-1)
  is_label = ids == label[:, None]
  ce = -jnp.sum(jnp.where(is_label, log_r, 0.0), axis=-1)
  mass = jnp.sum(terms.teacher, axis=-1, keepdims=True)
  l1 = jnp.sum(
    jnp.abs(jnp.exp(log_r) - terms.teacher / jnp.maximum(mass, 1e-12)), axis=-1
  )
  l1 = jnp.where(mass[:, 0] > loss.candidate_mass, l1, 0.0)
  best = jnp.take_along_axis(ids, jnp.argmax(scores, -1)[:, None], axis=-1)
  return ce_weight * ce + (1 - ce_weight) * l1, best[:, 0] == label


def _alignment(codes_VR, out: dspine.Draft, label_BAS) -> jax.Array:
  """sum over layers of 1 - cos(feature of slot j, code of its label)."""
  code_BASR = jnp.take(codes_VR, label_BAS, axis=0).astype(jnp.float32)
  total = 0.0
  for f_BAKR in out.features_BAKR:
    f = dspine.normalise(f_BAKR[:, :, 1:].astype(jnp.float32))
    total = total + 1.0 - jnp.sum(f * code_BASR, axis=-1)
  return total
