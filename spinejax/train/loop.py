"""A training run: steps, log, evaluation and checkpoints."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from spinejax.compat.checkpointing import Checkpoints
from spinejax.energy import hardware
from spinejax.errors import InputError
from spinejax.sharding import mesh_of, shard
from spinejax.train.flops import flops_per_step
from spinejax.train.step import (
  Frozen,
  Task,
  TrainConfig,
  TrainState,
  train_step,
)


@dataclasses.dataclass(frozen=True)
class Every:
  """Steps between logs, evaluations and checkpoints; 0 for none."""

  log: int = 100
  evaluate: int = 0
  save: int = 0

  def __post_init__(self):
    for field in ('log', 'evaluate', 'save'):
      if getattr(self, field) < 0:
        raise InputError(
          f'{field} = {getattr(self, field)}, expected at least 0'
        )

  def at(self, field: str, step: int, steps: int) -> bool:
    """Whether it is due after a step; at the end it always is."""
    every = getattr(self, field)
    return bool(every) and (step % every == 0 or step == steps)


def run(
  task: Task,
  train: TrainConfig,
  frozen: Frozen,
  state: TrainState,
  feed: Iterator[dict[str, np.ndarray]],
  *,
  every: Every,
  log: Callable[[int, dict[str, Any]], None],
  evaluate: Callable[[TrainState], float] | None = None,
  checkpoints: Checkpoints | None = None,
  about: dict[str, Any] | None = None,
) -> TrainState:
  """Goes on from `state.step` to `train.steps`; donates the state.

  Args:
    feed: batches; its state is saved with the checkpoints.
    log: called with the step and scalars: those of the step (see
      `train_step`), `learning_rate`, and `step_ms`, `tokens_per_s` (padding not
      counted) and `flops_per_s` of the steps since the last log, the first
      step left out, with its share `mfu` of what the chips can do, where that
      is known; and after an evaluation `tokens_per_round`.
    evaluate: the tokens a round of the drafter as it is.
    about: JSON values kept with each checkpoint.

  Raises:
    InputError: the loss is not finite.
  """
  mesh, steps = mesh_of(frozen.target.embed_VD), train.steps
  chip = hardware.of_device(jax.devices()[0].device_kind)
  peak = chip.flops * (1 if mesh is None else mesh.size) if chip else None
  first, since, flops = int(state.step), Stopwatch(), {}  # by shape
  for step in range(first, steps):
    batch = next(feed)
    rate = train.learning_rate_at(step)
    score = None
    state, scalars = train_step(
      task, frozen, state, shard(batch, mesh), task.options.at(step, steps),
      rate,
    )  # fmt: skip
    done = step + 1
    if step == first:  # it compiled
      since.restart(state)
    else:
      shape = batch['tokens_BT'].shape
      if shape not in flops:
        flops[shape] = flops_per_step(task, state, *shape)
      since.count(tokens=int(batch['length_B'].sum()), flops=flops[shape])
    if every.at('log', done, steps):
      told = jax.device_get(scalars)  # waits for the step
      _check_finite(told['loss'], done, train.learning_rate)
      speed = since.read()
      if speed and peak:
        speed['mfu'] = speed['flops_per_s'] / peak
      log(done, told | {'learning_rate': rate} | speed)
    if evaluate is not None and every.at('evaluate', done, steps):
      with since.paused(state):
        score = evaluate(state)
        log(done, {'tokens_per_round': score})
    if checkpoints is not None and every.at('save', done, steps):
      with since.paused(state):
        _check_finite(
          jax.device_get(scalars['loss']), done, train.learning_rate
        )
        with_input = (about or {}) | {'input': feed.get_state()}
        checkpoints.save(done, state, with_input, score)
  if first < steps:  # also where nothing was logged
    _check_finite(jax.device_get(scalars['loss']), steps, train.learning_rate)
  return jax.block_until_ready(state)


def resume(
  checkpoints: Checkpoints,
  state: TrainState,
  feed: Iterator[dict[str, np.ndarray]],
  about: dict[str, Any],
) -> TrainState:
  """The newest checkpoint's state, and the feed set to go on from there.

  With no checkpoint yet, `state` itself.

  Raises:
    InputError: the checkpoint is of another run: `about` differs.
  """
  if not checkpoints.steps:
    return state
  last = max(checkpoints.steps)
  saved = checkpoints.about(last)
  position = saved.pop('input', None)
  refuse_changes(saved, about, 'the run in this folder was begun')
  state = checkpoints.load(last, state)
  feed.set_state(position)
  return state


def refuse_changes(there: Any, here: Any, what: str, where: str = '') -> None:
  """Refuses to go on with settings that are not those of before.

  Raises:
    InputError: names the first field that differs.
  """
  if isinstance(there, dict) and isinstance(here, dict):
    # What stands alone first: another method explains other fields of it.
    for key in sorted(
      there.keys() | here.keys(),
      key=lambda key: (isinstance(here.get(key), dict), key),
    ):
      at = f'{where}.{key}' if where else key
      refuse_changes(there.get(key), here.get(key), what, at)
  elif there != here:
    raise InputError(
      f'{where} = {here!r}, but {what} with {there!r}; use that, or another '
      'place to write to'
    )


def _check_finite(loss: float, step: int, learning_rate: float) -> None:
  # NaN stays NaN: seen here, it has spoilt the weights for good.
  if not math.isfinite(loss):
    raise InputError(
      f'the loss is {loss} at step {step}; lower learning_rate = '
      f'{learning_rate}'
    )


class Stopwatch:
  """The speed of steps since the last reading, pauses left out."""

  def __init__(self):
    self._begin()

  def _begin(self):
    self._began, self._steps = time.perf_counter(), 0
    self._sums = {'tokens': 0, 'flops': 0}

  def count(self, **amounts: int) -> None:
    """One step, and the tokens and flops of it."""
    self._steps += 1
    for name, amount in amounts.items():
      self._sums[name] += amount

  def read(self) -> dict[str, float]:
    """`step_ms`, `tokens_per_s`, `flops_per_s`; nothing without a step."""
    steps, sums = self._steps, self._sums
    seconds = max(time.perf_counter() - self._began, 1e-9)
    self._begin()
    if not steps:
      return {}
    rates = {f'{name}_per_s': x / seconds for name, x in sums.items()}
    return {'step_ms': 1e3 * seconds / steps} | rates

  def restart(self, state: TrainState) -> None:
    """Forgets what was; first waits for the steps so far."""
    jax.block_until_ready(state.step)
    self._begin()

  @contextlib.contextmanager
  def paused(self, state: TrainState):
    """Stops while something else runs; first waits for the steps so far."""
    jax.block_until_ready(state.step)
    stopped = time.perf_counter()
    yield
    self._began += time.perf_counter() - stopped
