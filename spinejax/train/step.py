"""One optimiser step: anchors, loss, AdamW; schedules are on the host."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import optax

from spinejax.drafters import backbone
from spinejax.drafters.base import TargetView
from spinejax.drafters.dspine import DSpineConfig, DSpineParams, Injection
from spinejax.errors import InputError
from spinejax.train.batch import Batch, sample_anchors
from spinejax.train.features import Corpus
from spinejax.train.losses import DSpineLoss, dspine_loss


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Attributes:
  steps: optimiser steps.
  anchors: blocks a sequence.
  learning_rate, warmup, clip, weight_decay: of AdamW, cosine to 0.
  ce_start, ce_end: share of cross-entropy at the first and last step of
    the linear schedule that covers the run (DSpine).
  seed: of weights, anchors and replacement.
  """

  steps: int
  anchors: int = 24
  learning_rate: float = 6e-4
  warmup: float = 0.04
  clip: float = 1.0
  weight_decay: float = 0.0
  ce_start: float = 1.0
  ce_end: float = 1.0
  seed: int = 0

  def __post_init__(self):
    for field in ('steps', 'anchors'):
      if getattr(self, field) < 1:
        raise InputError(
          f'{field} = {getattr(self, field)}, expected at least 1'
        )
    for field in ('learning_rate', 'clip'):
      if not 0 < getattr(self, field) < math.inf:
        raise InputError(
          f'{field} = {getattr(self, field)}, expected a positive number'
        )
    for field in ('ce_start', 'ce_end', 'warmup'):
      if not 0 <= getattr(self, field) <= 1:
        raise InputError(f'{field} = {getattr(self, field)}, expected 0..1')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Float32 master weights, optimiser state, step, and fixed token codes."""

  weights: object
  optimizer: optax.OptState
  step: jax.Array
  codes_VR: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
  """What changes from step to step; scalars, so that no step recompiles."""

  learning_rate: float
  ce_weight: float
  alignment: float
  replacement: float


def schedule(train: TrainConfig, loss: DSpineLoss, step: int) -> Schedule:
  """The scheduled values at a step: warm-up, then cosine to zero.

  Computed on the host: a value fetched from the device would wait for the
  steps before it.
  """
  done = step / train.steps
  return Schedule(
    learning_rate=_learning_rate(train, step + 1),
    ce_weight=train.ce_start + (train.ce_end - train.ce_start) * done,
    alignment=float(loss.alignment(step)),
    replacement=float(loss.replacement(step, train.steps)),
  )


def _learning_rate(train: TrainConfig, number: int) -> float:
  """That of update `number` = 1, 2, ...; `optax.warmup_cosine_decay_schedule`
  from 0."""
  warmup = max(1, round(train.warmup * train.steps))
  if number <= warmup:
    return train.learning_rate * number / warmup
  share = min((number - warmup) / max(1, train.steps - warmup), 1.0)
  return train.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def make_optimizer(train: TrainConfig) -> optax.GradientTransformation:
  """Clipped AdamW of learning rate 1; a step scales its updates."""
  return optax.chain(
    optax.clip_by_global_norm(train.clip),
    optax.adamw(1.0, weight_decay=train.weight_decay),
  )


def init_injection(
  cfg: DSpineConfig, key: jax.Array, axes_DR: jax.Array
) -> Injection:
  """Readouts at D^T; writes, predecessor gate and bias at 0.

  So that the fresh drafter is a block-causal DFlash. The other matrices are
  uniform in +-1 / sqrt(fan-in), the published code's default.
  """
  message, receiver = jax.random.uniform(
    key, (2, cfg.message, cfg.rank), jnp.float32, -1.0, 1.0
  ) * (cfg.rank**-0.5)
  return Injection(
    readouts_RD=tuple(
      jnp.asarray(axes_DR.T, jnp.float32) for _ in range(cfg.layers)
    ),
    writes_DM=tuple(
      jnp.zeros((cfg.width, cfg.message)) for _ in range(cfg.layers)
    ),
    message_MR=message,
    receiver_MR=receiver,
    predecessor_MR=jnp.zeros((cfg.message, cfg.rank)),
    bias_M=jnp.zeros((cfg.message,)),
  )


def init_train_state(
  train: TrainConfig,
  cfg: DSpineConfig,
  axes_DR: jax.Array,
  codes_VR: jax.Array,
) -> TrainState:
  """Fresh weights around the transfer axes and the token codes."""
  base_key, injection_key = jax.random.split(jax.random.key(train.seed))
  weights = {
    'backbone': backbone.random_backbone(cfg, base_key),
    'injection': init_injection(cfg, injection_key, axes_DR),
  }
  # Fresh norms share one buffer, which could not be donated twice.
  weights = jax.tree.map(jnp.copy, weights)
  return TrainState(
    weights=weights,
    optimizer=make_optimizer(train).init(weights),
    step=jnp.int32(0),
    codes_VR=jnp.asarray(codes_VR, jnp.float32),
  )


def to_params(state: TrainState) -> DSpineParams:
  """The drafter's parameters as `propose` takes them, float32."""
  return DSpineParams(
    state.weights['backbone'], state.weights['injection'], state.codes_VR
  )


@functools.partial(
  jax.jit,
  static_argnames=('train', 'cfg', 'loss'),
  donate_argnames=('state',),
)
def train_step(
  train: TrainConfig,
  cfg: DSpineConfig,
  loss: DSpineLoss,
  view: TargetView,
  state: TrainState,
  data: Corpus,
  rows_B: jax.Array,
  now: Schedule,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One step on the sequences `rows_B`; donates the state.

  Forward and backward run in the dtype of the target's tables, the update in
  float32. `train.steps` and the scheduled fields of `train` are not read
  here; `now` has their values.

  Returns:
    The next state, and scalars: `loss`, weighted means of its terms,
    `accuracy_S` by slot and the gradient norm.
  """
  key = jax.random.fold_in(jax.random.key(train.seed), state.step)
  anchor_key, replace_key = jax.random.split(key)
  loss_mask_BT = data.loss_mask_NT[rows_B]
  anchors_BA, keep_BA = sample_anchors(anchor_key, loss_mask_BT, train.anchors)
  batch = Batch(
    tokens_BT=data.tokens_NT[rows_B],
    loss_mask_BT=loss_mask_BT,
    features_BTP=data.features_NTP[rows_B],
    teacher_BTD=data.teacher_NTD[rows_B],
    anchors_BA=anchors_BA,
    keep_BA=keep_BA,
  )
  replace_BA = jax.random.bernoulli(replace_key, now.replacement, keep_BA.shape)

  def objective(weights):
    weights = jax.tree.map(lambda x: x.astype(view.embed_VD.dtype), weights)
    params = DSpineParams(
      weights['backbone'], weights['injection'], state.codes_VR
    )
    return dspine_loss(
      cfg,
      loss,
      params,
      view,
      batch,
      beta=now.alignment,
      ce_weight=now.ce_weight,
      replace_BA=replace_BA,
    )

  (value, terms), grads = jax.value_and_grad(objective, has_aux=True)(
    state.weights
  )
  updates, optimizer = make_optimizer(train).update(
    grads, state.optimizer, state.weights
  )
  updates = jax.tree.map(lambda u: now.learning_rate * u, updates)
  state = dataclasses.replace(
    state,
    weights=optax.apply_updates(state.weights, updates),
    optimizer=optimizer,
    step=state.step + 1,
  )
  weights_BAS = terms.pop('weights')
  total = jnp.maximum(jnp.sum(weights_BAS), 1.0)
  scalars = {
    k: v if k.endswith('_S') else jnp.sum(v * weights_BAS) / total
    for k, v in terms.items()
  }
  return state, scalars | {'loss': value, 'grad_norm': optax.tree.norm(grads)}
