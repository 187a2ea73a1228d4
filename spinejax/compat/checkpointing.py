"""Checkpoints of a training run, by orbax (v1, which still changes)."""

import logging
import os
import warnings
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from spinejax.errors import InputError

# It logs two dozen lines a checkpoint, through absl's own logger.
logging.getLogger('absl').addFilter(
  lambda record: 'orbax' not in record.pathname
)

_METRIC = 'score'
_policies = ocp.training.preservation_policies


class Checkpoints:
  """A folder of checkpoints, of which the latest and the best are kept.

  A checkpoint is written beside the others under a temporary name and renamed
  when it is complete, so a killed run leaves whole ones.
  """

  def __init__(self, folder: str | os.PathLike[str], latest: int = 2):
    """`latest`: how many of the newest are kept, beside the best one."""
    best = _policies.BestN(
      get_metric_fn=lambda metrics: metrics[_METRIC], n=1,
      keep_checkpoints_without_metrics=False,
    )  # fmt: skip
    newest = _policies.LatestN(latest)
    self._orbax = ocp.training.Checkpointer(
      os.path.abspath(folder),
      preservation_policy=_policies.AnyPreservationPolicy([newest, best]),
      cleanup_tmp_directories=True,
    )

  @property
  def steps(self) -> list[int]:
    """Steps of the checkpoints there are."""
    return [checkpoint.step for checkpoint in self._orbax.checkpoints]

  def save(
    self, step: int, state: Any, about: dict[str, Any], score: float | None
  ) -> None:
    """Writes a checkpoint and waits until it is complete.

    Args:
      state: a tree of arrays.
      about: JSON values beside it.
      score: the larger the better; None if it is not known.
    """
    metrics = None if score is None else {_METRIC: score}
    with warnings.catch_warnings():
      # `save` of the newer releases is not in the older ones.
      warnings.simplefilter('ignore', DeprecationWarning)
      self._orbax.save_pytree(
        step, state, force=True, metrics=metrics, custom_metadata=about
      )

  def about(self, step: int) -> dict[str, Any]:
    """What was saved beside the state."""
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', DeprecationWarning)
      return self._orbax.pytree_metadata(step).custom_metadata

  def load(self, step: int, like: Any) -> Any:
    """The state of a step, placed as the arrays of `like` are.

    Raises:
      InputError: the checkpoint does not hold such a state.
    """
    wanted = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      like,
    )
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        return self._orbax.load_pytree(step, wanted)
    except (KeyError, OSError, TypeError, ValueError) as error:
      reason = str(error).splitlines()[0]
      raise InputError(
        f'{self._orbax.directory}/{step}: not a checkpoint of this run '
        f'({reason}); use another folder'
      ) from None

  def close(self) -> None:
    self._orbax.close()
