"""A short training run in one go, without checkpoints."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.drafters.backbone import tap_ids
from spinejax.drafters.base import DraftModel, TargetView
from spinejax.drafters.codes import Basis, fit_basis, token_codes
from spinejax.drafters.dspine import DSpineConfig, DSpineParams, dspine
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.train.features import check_size, compute_corpus
from spinejax.train.losses import DSpineLoss
from spinejax.train.self_data import Sequences
from spinejax.train.step import (
  TrainConfig,
  init_train_state,
  schedule,
  to_params,
  train_step,
)

_TIMED_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Fitted:
  """A trained DSpine, float32, with its transfer basis and codes."""

  params: DSpineParams
  basis: Basis
  codes_VR: np.ndarray
  steps: int
  seconds: float


def drafter_config(
  of: TargetConfig,
  *,
  layers: int,
  block: int,
  mask_id: int,
  taps: int,
  rank: int,
  message: int,
) -> DSpineConfig:
  """A DSpine whose draft layers have the target's own proportions.

  Raises:
    InputError: a size is not positive, or does not fit the target.
  """
  sizes = dict(layers=layers, taps=taps, rank=rank, message=message)
  for field, size in sizes.items():
    if size < 1:
      raise InputError(f'{field} = {size}, expected at least 1')
  return DSpineConfig(
    vocab=of.vocab,
    width=of.width,
    layers=layers,
    heads=of.heads,
    kv_heads=of.kv_heads,
    head_dim=of.head_dim,
    ffn=of.ffn,
    block=block,
    mask_id=mask_id,
    taps=tap_ids(of.layers, taps),
    norm_eps=of.norm_eps,
    rope_base=of.rope_base,
    causal=True,
    rank=rank,
    message=message,
  )


def batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Endless shuffled batches of sequence numbers; at least one must fit."""
  rng = np.random.default_rng(seed)
  while True:
    order = rng.permutation(count)
    for i in range(0, count - size + 1, size):
      yield order[i : i + size]


def check(
  target: Target,
  cfg: DSpineConfig,
  data: Sequences,
  train: TrainConfig,
  *,
  batch: int,
  seconds: float = 0.0,
  log_every: int = 100,
) -> None:
  """Refuses what `fit` could not finish.

  Raises:
    InputError: see `fit`.
  """
  DraftModel(dspine(cfg)).check(target)
  N, T = data.tokens_NT.shape
  for field, value in (('batch', batch), ('log_every', log_every)):
    if value < 1:
      raise InputError(f'{field} = {value}, expected at least 1')
  if seconds < 0:
    raise InputError(f'seconds = {seconds}, expected at least 0')
  if N < batch:
    raise InputError(
      f'{N} sequences are less than one batch of {batch}; write more data or '
      'lower the batch'
    )
  if T > target.cfg.max_position:
    raise InputError(
      f'sequences of {T} tokens exceed the context of '
      f'{target.cfg.max_position} that {target.name} was trained for'
    )
  if train.anchors > T:
    raise InputError(
      f'anchors = {train.anchors}, expected at most the {T} tokens of a '
      'sequence'
    )
  largest = data.tokens_NT.max()
  if largest >= target.cfg.vocab:
    raise InputError(
      f'the data has token id {largest}, {target.name} has 0..'
      f'{target.cfg.vocab - 1}: another target wrote it'
    )
  check_size(target, data, cfg.taps)


def fit(
  target: Target,
  cfg: DSpineConfig,
  data: Sequences,
  train: TrainConfig,
  *,
  batch: int,
  seconds: float = 0.0,
  log: Callable[[int, dict], None] | None = None,
  log_every: int = 100,
) -> Fitted:
  """Trains a DSpine drafter for a target on its own answers.

  Args:
    batch: sequences a step.
    seconds: if positive, the number of steps is chosen, after timing a few,
      so that the run takes about this long; `train.steps` is ignored.
    log: called with the step and its scalars every `log_every` steps.

  Raises:
    InputError: the drafter, the data or a setting does not fit the target or
      each other, or there is not enough memory; before anything is computed.
      Later, if the loss is no longer finite.
  """
  check(
    target, cfg, data, train, batch=batch, seconds=seconds, log_every=log_every
  )
  basis = fit_basis(target.head_VD, cfg.rank)
  codes_VR = token_codes(target.head_VD, basis)
  loss = DSpineLoss()

  corpus = compute_corpus(target, data, cfg.taps)
  view = TargetView(target.params.embed_VD, target.params.head_VD)

  # Without the fields that are scheduled: they make no other program.
  still = TrainConfig(
    steps=1,
    anchors=train.anchors,
    clip=train.clip,
    weight_decay=train.weight_decay,
    seed=train.seed,
  )

  def run(train: TrainConfig, steps: int, report: bool):
    state = init_train_state(train, cfg, basis.axes_DR, codes_VR)
    feed = batches(len(data.length_N), batch, train.seed)
    for step in range(steps):
      state, scalars = train_step(
        still,
        cfg,
        loss,
        view,
        state,
        corpus,
        jnp.asarray(next(feed)),
        schedule(train, loss, step),
      )
      if report and ((step + 1) % log_every == 0 or step + 1 == steps):
        told = jax.device_get(scalars)
        # NaN stays NaN: seen here, it has spoilt the weights for good.
        if not np.isfinite(told['loss']):
          raise InputError(
            f'the loss is {told["loss"]} at step {step + 1}; lower '
            f'learning_rate = {train.learning_rate}'
          )
        if log is not None and (step + 1) % log_every == 0:
          log(step + 1, told)
    return jax.block_until_ready(state)

  if seconds:
    run(train, 2, False)  # compiles
    began = time.perf_counter()
    run(train, _TIMED_STEPS, False)
    each = (time.perf_counter() - began) / _TIMED_STEPS
    train = dataclasses.replace(train, steps=max(1, int(seconds / each)))
  began = time.perf_counter()
  state = run(train, train.steps, True)
  took = time.perf_counter() - began
  return Fitted(to_params(state), basis, codes_VR, train.steps, took)
