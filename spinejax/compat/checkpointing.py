"""Checkpoints of a training run, by orbax (v1, which still changes)."""

import contextlib
import hashlib
import logging
import os
import warnings
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from spinejax.errors import InputError

# It logs two dozen lines a checkpoint, through absl's own logger.
logging.getLogger('absl').addFilter(
  lambda record: 'orbax' not in record.pathname
)

_METRIC, _DIGEST = 'score', 'digest'
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

    Raises:
      InputError: it cannot be written there.
    """
    metrics = None if score is None else {_METRIC: score}
    about = about | {_DIGEST: _digest(state)}
    try:
      with _quiet():
        self._orbax.save_pytree(
          step, state, force=True, metrics=metrics, custom_metadata=about
        )
    except Exception as error:  # a full disk is a ValueError of tensorstore
      reason = str(error).splitlines()[0]
      raise InputError(
        f'{self._orbax.directory}/{step}: cannot be written ({reason})'
      ) from None

  def about(self, step: int) -> dict[str, Any]:
    """What was saved beside the state.

    Raises:
      InputError: the checkpoint is damaged.
    """
    return {k: v for k, v in self._metadata(step).items() if k != _DIGEST}

  def load(self, step: int, like: Any) -> Any:
    """The state of a step, placed as the arrays of `like` are.

    Raises:
      InputError: the checkpoint is damaged, or does not hold such a state.
    """
    wanted = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      like,
    )
    digest = self._metadata(step)[_DIGEST]
    try:
      with _quiet():
        state = self._orbax.load_pytree(step, wanted)
    except Exception as error:  # of orbax, tensorstore and zarr alike
      raise self._damaged(step, error) from None
    if _digest(state) != digest:
      raise self._damaged(step, 'its arrays are not those that were saved')
    return state

  def _metadata(self, step: int) -> dict[str, Any]:
    try:
      with _quiet():
        found = self._orbax.pytree_metadata(step).custom_metadata
    except Exception as error:
      raise self._damaged(step, error) from None
    if not isinstance(found, dict) or _DIGEST not in found:
      raise self._damaged(step, 'its metadata is missing')
    return found

  def _damaged(self, step: int, reason: object) -> InputError:
    folder = f'{self._orbax.directory}/{step}'
    short = str(reason).splitlines()[0][:100]
    return InputError(
      f'{folder}: damaged, or of another run ({short}); delete it to go on '
      'from the one before, or use another place to write to'
    )

  def close(self) -> None:
    """Ends orbax's manager of the folder."""
    self._orbax.close()


@contextlib.contextmanager
def _quiet():
  """`save`, `load` and `metadata` of newer releases are not in older ones."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)
    yield


def _digest(state: Any) -> str:
  """SHA-256 of all arrays: what is stored carries no checksums."""
  digest = hashlib.sha256()
  for x in jax.tree.leaves(jax.device_get(state)):
    digest.update(np.ascontiguousarray(x).data)
  return digest.hexdigest()
