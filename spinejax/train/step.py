"""One optimiser step: target states, anchors, loss, AdamW."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from spinejax.decode.request import whole
from spinejax.drafters.base import TargetView
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.model import TargetParams, read
from spinejax.train.batch import Batch, loss_mask, sample_anchors
from spinejax.train.objectives.base import Now, Objective, slot_weights


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Attributes:
  steps: optimiser steps.
  anchors: blocks a sequence.
  accumulate: parts in which a step takes its batch, to save memory.
  learning_rate, warmup, clip, weight_decay: of AdamW; linear warm-up for
    that share of the run, then cosine to 0.
  seed: of weights, order of the data, anchors and what objectives draw.
  """

  steps: int
  anchors: int = 24
  accumulate: int = 1
  learning_rate: float = 6e-4
  warmup: float = 0.04
  clip: float = 1.0
  weight_decay: float = 0.0
  seed: int = 0

  def __post_init__(self):
    for field in ('steps', 'anchors', 'accumulate'):
      value = getattr(self, field)
      if type(value) is not int or value < 1:
        raise InputError(f'{field} = {value!r}, expected an integer >= 1')
    whole('seed', self.seed, 0, 2**32 - 1)
    for field in ('learning_rate', 'clip', 'warmup', 'weight_decay'):
      value = getattr(self, field)
      number = isinstance(value, int | float) and not isinstance(value, bool)
      if not number or not 0 <= value < math.inf:
        raise InputError(f'{field} = {value!r}, expected a finite number >= 0')
    for field in ('learning_rate', 'clip'):
      if not (value := getattr(self, field)):
        raise InputError(f'{field} = {value}, expected a positive number')
    if self.warmup > 1:
      raise InputError(f'warmup = {self.warmup}, expected 0..1')

  def learning_rate_at(self, step: int) -> float:
    """That of update 1, 2, ... for step 0, 1, ...

    Computed on the host: a value fetched from the device would wait for the
    steps before it.
    """
    number, warmup = step + 1, max(1, round(self.warmup * self.steps))
    if number <= warmup:
      return self.learning_rate * number / warmup
    share = min((number - warmup) / max(1, self.steps - warmup), 1.0)
    return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


@dataclasses.dataclass(frozen=True)
class Task:
  """What a step is compiled for.

  Attributes:
    objective, options, cfg: the method, its loss and its shape.
    target: the target's shape.
    anchors, accumulate, clip, weight_decay, seed: see `TrainConfig`.
  """

  objective: Objective
  options: Any
  cfg: Any
  target: TargetConfig
  anchors: int
  accumulate: int
  clip: float
  weight_decay: float
  seed: int

  @classmethod
  def of(cls, objective, options, cfg, target, train: TrainConfig) -> 'Task':
    """The task of an objective with its options and shapes."""
    return cls(
      objective, options, cfg, target, train.anchors, train.accumulate,
      train.clip, train.weight_decay, train.seed,
    )  # fmt: skip

  def optimizer(self) -> optax.GradientTransformation:
    """Clipped AdamW of learning rate 1; a step scales its updates."""
    return optax.chain(
      optax.clip_by_global_norm(self.clip),
      optax.adamw(1.0, weight_decay=self.weight_decay),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Float32 master weights, the optimiser's state and the step."""

  weights: Any
  optimizer: optax.OptState
  step: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
  """What is not trained: the target, and a DSpine's token codes or None."""

  target: TargetParams
  codes_VR: jax.Array | None


def init_state(task: Task, axes_DR: jax.Array | None) -> TrainState:
  """Fresh weights; `axes_DR` are DSpine's transfer axes."""
  key = jax.random.key(task.seed)
  weights = task.objective.init(task.cfg, key, axes_DR)
  # Fresh norms share one buffer, which could not be donated twice.
  weights = jax.tree.map(jnp.copy, weights)
  return TrainState(weights, task.optimizer().init(weights), jnp.int32(0))


def make_batch(
  task: Task, target: TargetParams, tokens: dict[str, jax.Array], key
) -> Batch:
  """Sequences with the target's states and random anchors."""
  tokens_BT = tokens['tokens_BT']
  mask_BT = loss_mask(
    tokens['answer_B'], tokens['length_B'], tokens_BT.shape[1]
  )
  anchors_BA, keep_BA = sample_anchors(key, mask_BT, task.anchors)
  with jax.named_scope('target'):
    teacher_BTD, features_BTP = read(
      task.target, target, tokens_BT, task.cfg.taps
    )
  return Batch(
    tokens_BT, mask_BT, features_BTP, teacher_BTD, anchors_BA, keep_BA
  )


@functools.partial(
  jax.jit, static_argnames=('task',), donate_argnames=('state',)
)
def train_step(
  task: Task,
  frozen: Frozen,
  state: TrainState,
  tokens: dict[str, jax.Array],
  now: Now,
  learning_rate: jax.Array | float,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One step on a batch; donates the state.

  Forward and backward run in the dtype of the target's tables, the update in
  float32.

  Args:
    tokens: `tokens_BT`, `answer_B`, `length_B`.

  Returns:
    The next state, and scalars: `loss`, weighted means of its terms,
    accuracies by slot (`..._S`), the gradient's norm and the supervised
    tokens.
  """
  key = jax.random.fold_in(jax.random.key(task.seed), state.step)
  anchor_key, loss_key = jax.random.split(key)
  batch = make_batch(task, frozen.target, tokens, anchor_key)
  total = jnp.maximum(jnp.sum(slot_weights(task.cfg, task.options, batch)), 1.0)
  gradient = functools.partial(_gradient, task, frozen, now, total)
  if task.accumulate == 1:
    grads, told = gradient(state.weights, batch, loss_key)
  else:
    grads, told = _accumulated(task, gradient, state.weights, batch, loss_key)
  updates, optimizer = task.optimizer().update(
    grads, state.optimizer, state.weights
  )
  updates = jax.tree.map(lambda u: learning_rate * u, updates)
  state = TrainState(
    optax.apply_updates(state.weights, updates), optimizer, state.step + 1
  )
  told |= {
    'grad_norm': optax.tree.norm(grads),
    'supervised': jnp.sum(batch.loss_mask_BT),
  }
  return state, told


def _gradient(task, frozen, now, total, weights, batch, key):
  """Gradient and scalars of (a part of) a batch."""
  dtype = frozen.target.embed_VD.dtype
  view = TargetView(frozen.target.embed_VD, frozen.target.head_VD)

  def objective(weights):
    weights = jax.tree.map(lambda x: x.astype(dtype), weights)
    params = task.objective.params(weights, frozen.codes_VR)
    return task.objective.loss(
      task.cfg, task.options, params, view, batch, now, total, key
    )

  (value, terms), grads = jax.value_and_grad(objective, has_aux=True)(weights)
  weight_BAS = terms.pop('weights')
  told = {
    k: v if k.endswith('_S') else jnp.sum(v * weight_BAS) / total
    for k, v in terms.items()
  }
  return grads, told | {'loss': value}


def _accumulated(task, gradient, weights, batch: Batch, key):
  """The sum over parts of a batch, whose losses share one divisor.

  Accuracies are means over the parts. DSpine's cosine term is scaled by the
  cross-entropy of its part, not of the whole batch.
  """
  parts = jax.tree.map(
    lambda x: x.reshape(task.accumulate, -1, *x.shape[1:]), batch
  )

  def add(sums, part):
    batch, key = part
    grads, told = gradient(weights, batch, key)
    told = {
      k: v / task.accumulate if k.endswith('_S') else v for k, v in told.items()
    }
    return jax.tree.map(jnp.add, sums, (grads, told)), None

  keys = jax.random.split(key, task.accumulate)
  first = jax.tree.map(lambda x: x[0], (parts, keys))
  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    jax.eval_shape(gradient, weights, *first),
  )
  return lax.scan(add, zeros, (parts, keys))[0]
