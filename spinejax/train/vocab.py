"""Losses over the whole vocabulary, without all its logits at once.

Rows go through the head in chunks, and a chunk's gradient is taken while its
logits are there: they are neither kept for the backward pass nor computed
again in it. The loss is linear in its terms, with weights known beforehand, so
the gradient needs nothing from the rest of the step.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig
from spinejax.target import layers as nn
from spinejax.top import top_k

_CHUNK = 2048  # rows; their logits are by far the largest arrays of a step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trained:
  """What the gradient flows into.

  Attributes:
    hidden_ND: final-normed draft states, a row a slot.
    low_NE, up_VE: a low-rank correction, logits + up_VE low; or None.
  """

  hidden_ND: jax.Array
  low_NE: jax.Array | None = None
  up_VE: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Aims:
  """What each row should come to, and what its terms weigh in the loss.

  Attributes:
    label_N: the token to predict.
    ce_weight_N: of the cross-entropy.
    teacher_ND: the target's final-normed states, or None: no L1 term.
    l1_weight_N: of sum over the vocabulary of |q - p|.
    base_ce_weight_N: of the cross-entropy of the logits without a correction.
  """

  label_N: jax.Array
  ce_weight_N: jax.Array
  teacher_ND: jax.Array | None = None
  l1_weight_N: jax.Array | None = None
  base_ce_weight_N: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Terms:
  """What the rows gave, [rows] or of any shape they are brought to; no
  gradient passes through it.

  Attributes:
    ce, l1, base_ce: the terms; None where there is no weight for them.
    candidates, scores: the largest logits, largest first; one more axis.
    teacher: probabilities of the candidates under the target, or None.
  """

  ce: jax.Array
  l1: jax.Array | None
  base_ce: jax.Array | None
  candidates: jax.Array
  scores: jax.Array
  teacher: jax.Array | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def vocab_loss(
  cfg: BackboneConfig,
  candidates: int,
  head_VD: jax.Array,
  trained: Trained,
  aims: Aims,
) -> tuple[jax.Array, Terms]:
  """sum over rows of ce_weight * CE + l1_weight * L1, and the terms.

  Args:
    cfg: states the multiplier and the cap of the logits.
    candidates: C, how many of the largest logits are told.
    head_VD: the target's; frozen, as are the weights of the terms.
    trained, aims: the rows.
  """
  value, terms, _ = _chunked(cfg, candidates, head_VD, trained, aims)
  return value, terms


def _forward(cfg, candidates, head_VD, trained, aims):
  value, terms, gradient = _chunked(cfg, candidates, head_VD, trained, aims)
  return (value, terms), gradient


def _backward(cfg, candidates, gradient, cotangent):
  del cfg, candidates
  by, _ = cotangent
  scaled = jax.tree.map(lambda x: (x * by).astype(x.dtype), gradient)
  return None, scaled, None


vocab_loss.defvjp(_forward, _backward)


def _chunked(cfg, candidates, head_VD, trained: Trained, aims: Aims):
  """Value, terms and gradient; XLA drops the last where nothing uses it."""
  N = len(aims.label_N)
  size = min(_CHUNK, N)

  def chunks(x):
    """Every n-th row: a chunk lies on all devices that share the rows."""
    x = jnp.pad(x, [(0, -N % size)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(size, -1, *x.shape[1:]).swapaxes(0, 1)

  def rows_of(x):
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:N]

  up_VE = trained.up_VE
  rows = dataclasses.replace(trained, up_VE=None)

  def step(carry, part):
    value, d_up_VE = carry
    rows, aims = part
    told, d_rows, d_up = _chunk(cfg, candidates, head_VD, up_VE, rows, aims)
    more, terms = told
    d_up_VE = None if d_up is None else d_up_VE + d_up
    return (value + more, d_up_VE), (terms, d_rows)

  start = None if up_VE is None else jnp.zeros(up_VE.shape, jnp.float32)
  (value, d_up_VE), out = lax.scan(
    step, (jnp.float32(0), start), jax.tree.map(chunks, (rows, aims))
  )
  terms, d_rows = jax.tree.map(rows_of, out)
  if d_up_VE is not None:
    d_up_VE = d_up_VE.astype(up_VE.dtype)
  return value, terms, dataclasses.replace(d_rows, up_VE=d_up_VE)


def _chunk(cfg, candidates, head_VD, up_VE, rows: Trained, aims: Aims):
  """(value, terms), gradient of the rows and of up_VE, of one chunk."""
  # Logits are kept in the dtype of the weights, as torch trainers keep them:
  # to write and read them is what a chunk's time goes into.
  base, uncap = jax.vjp(
    functools.partial(backbone.cap, cfg), nn.dense(rows.hidden_ND, head_VD)
  )
  logits = base if up_VE is None else base + nn.dense(rows.low_NE, up_VE)
  ids = top_k(logits, candidates)[1]
  scores = _at(logits, ids)
  total = _log_total(logits, scores[:, :1])
  at_label = aims.label_N[:, None]
  ce_N = (total - _at(logits, at_label))[:, 0]
  value = jnp.sum(aims.ce_weight_N * ce_N)
  hit = jnp.arange(logits.shape[-1]) == at_label
  d_base, l1_N, base_ce_N, teacher_NC = 0.0, None, None, None
  if aims.base_ce_weight_N is not None:
    base_total = _log_total(base, _largest(base))
    base_ce_N = (base_total - _at(base, at_label))[:, 0]
    value += jnp.sum(aims.base_ce_weight_N * base_ce_N)
    q_base = _law(base, base_total)
    d_base = aims.base_ce_weight_N[:, None] * (q_base - hit)
  if aims.teacher_ND is not None:
    teacher = nn.dense(aims.teacher_ND, head_VD)
    totals = total, _log_total(teacher, _largest(teacher))
    teacher_NC = jnp.exp(_at(teacher, ids) - totals[1])
    # Thrice, each time behind a barrier: what XLA finds to be the same it
    # writes out in float32 and reads again, which takes longer.
    q, p = _law(logits, totals[0]), _law(teacher, totals[1])
    l1_N = jnp.sum(jnp.abs(q - p), axis=-1)
    totals = lax.optimization_barrier(totals)
    q, p = _law(logits, totals[0]), _law(teacher, totals[1])
    mean = jnp.sum(jnp.sign(q - p) * q, axis=-1, keepdims=True)
    totals = lax.optimization_barrier(totals)
    q, p = _law(logits, totals[0]), _law(teacher, totals[1])
    value += jnp.sum(aims.l1_weight_N * l1_N)
    # d L1 / d logits = q (s - <s, q>), s = sign(q - p)
    d_l1 = q * (jnp.sign(q - p) - mean)
    d_logits = aims.l1_weight_N[:, None] * d_l1
  else:
    q, d_logits = _law(logits, total), 0.0
  # d CE / d logits = q - [label]
  d_logits += aims.ce_weight_N[:, None] * (q - hit)

  def back(d, table):
    """d table, in the table's dtype: mixed products miss the tensor cores."""
    return nn.einsum('nv,vd->nd', d.astype(table.dtype), table)

  (d_base,) = uncap((d_logits + d_base).astype(base.dtype))
  d_rows, d_up_VE = Trained(back(d_base, head_VD)), None
  if up_VE is not None:
    d_rows = dataclasses.replace(d_rows, low_NE=back(d_logits, up_VE))
    d_up_VE = nn.einsum(
      'nv,ne->ve', d_logits.astype(up_VE.dtype), rows.low_NE, dtype=jnp.float32
    )
  d_rows = jax.tree.map(lambda d, x: d.astype(x.dtype), d_rows, rows)
  terms = Terms(ce_N, l1_N, base_ce_N, ids, scores, teacher_NC)
  return (value, terms), d_rows, d_up_VE


def _at(logits: jax.Array, ids: jax.Array) -> jax.Array:
  """The logits of some ids, float32."""
  return jnp.take_along_axis(logits, ids, axis=-1).astype(jnp.float32)


def _largest(logits: jax.Array) -> jax.Array:
  return jnp.max(logits, axis=-1, keepdims=True).astype(jnp.float32)


def _log_total(logits: jax.Array, top: jax.Array) -> jax.Array:
  """log of the sum of exponentials, kept axis, float32."""
  shifted = logits.astype(jnp.float32) - top
  return top + jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))


def _law(logits: jax.Array, total: jax.Array) -> jax.Array:
  """softmax(logits), float32."""
  return jnp.exp(logits.astype(jnp.float32) - total)
