"""Everything a training run starts from, checked before the first step."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from spinejax.drafters.base import DraftModel
from spinejax.drafters.codes import Basis, fit_basis, token_codes
from spinejax.drafters.shape import drafter_config
from spinejax.errors import InputError
from spinejax.sharding import shard
from spinejax.target.loading import Target
from spinejax.train.objectives import OBJECTIVES
from spinejax.train.shards import DataSet
from spinejax.train.step import Frozen, Task, TrainConfig, init_state


@dataclasses.dataclass(frozen=True)
class Start:
  """A method, its frozen parts, and fresh weights.

  Attributes:
    basis, codes_VR: DSpine's transfer basis and float64 codes, else None.
  """

  task: Task
  frozen: Frozen
  state: Any
  basis: Basis | None
  codes_VR: np.ndarray | None


def make_task(
  target: Target,
  method: str,
  train: TrainConfig,
  *,
  drafter: Mapping[str, Any],
  loss: Mapping[str, Any],
) -> Task:
  """What a step is compiled for; nothing is computed yet.

  Args:
    drafter: layers, block, mask_id, taps, and fields of the method's config.
    loss: fields of the method's options that shall not have their defaults.

  Raises:
    InputError: there is no such method or field, or a size does not fit.
  """
  if method not in OBJECTIVES:
    raise InputError(
      f'method = {method!r}, expected one of {", ".join(OBJECTIVES)}'
    )
  objective = OBJECTIVES[method]
  cfg = drafter_config(objective.config, target.cfg, **drafter)
  known = {field.name for field in dataclasses.fields(objective.options)}
  for field in loss:
    if field not in known:
      raise InputError(f'loss: {method} has no field {field!r}')
  options = objective.options(**loss)
  DraftModel(objective.drafter(cfg)).check(target)
  return Task.of(objective, options, cfg, target.cfg, train)


def start(target: Target, task: Task) -> Start:
  """Fresh weights, and what DSpine needs of the target's head."""
  basis = codes_VR = None
  if hasattr(task.cfg, 'rank'):
    basis = fit_basis(target.head_VD, task.cfg.rank)
    codes_VR = token_codes(target.head_VD, basis)
  codes = None if codes_VR is None else jnp.asarray(codes_VR, jnp.float32)
  frozen = shard(Frozen(target.params, codes), target.mesh)
  state = init_state(task, None if basis is None else basis.axes_DR)
  state = shard(state, target.mesh)
  return Start(task, frozen, state, basis, codes_VR)


def check_batch(
  target: Target,
  train: TrainConfig,
  data: DataSet,
  *,
  batch: int,
  lengths: Sequence[int],
) -> None:
  """Refuses batches that a step could not take or learn from.

  Args:
    lengths: that sequences are padded to.

  Raises:
    InputError: anchors, parts or a length do not fit, or nothing in the data
      is supervised.
  """
  if max(lengths) > target.cfg.max_position:
    raise InputError(
      f'length = {max(lengths)} exceeds the context of '
      f'{target.cfg.max_position} that {target.name} was trained for'
    )
  if train.anchors > min(lengths):
    raise InputError(
      f'anchors = {train.anchors}, expected at most the {min(lengths)} tokens '
      'of a sequence'
    )
  if batch % train.accumulate:
    raise InputError(
      f'batch = {batch} is not a multiple of accumulate = {train.accumulate}'
    )
  split = 1 if target.mesh is None else target.mesh.shape['data']
  if batch // train.accumulate % split:
    raise InputError(
      f'batch = {batch} in {train.accumulate} parts does not split over '
      f'data = {split}'
    )
  if not data.manifest['answer_tokens']:
    raise InputError(f'{data.folder}: has no answer tokens to learn from')
