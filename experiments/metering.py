"""What binaries that measure joules share: a baseline, and going on."""

import pathlib

from experiments import common
from experiments.random_weights import random_target
from spinejax import report
from spinejax.energy import windows, workload
from spinejax.errors import InputError
from spinejax.target.loading import target_config
from spinejax.target.memory import available_bytes

_BATCH, _DRIFT = 64, 0.05


def resumed(config, path: pathlib.Path, free) -> list[dict]:
  """The rows of an earlier run of the same settings.

  Args:
    free: settings that may differ.
  """
  if not path.exists():
    return []
  result = report.results.load(path)
  if result['device_kind'] != report.results.device()[1]:
    raise InputError(f'{path} is of {result["device"]}, expected this machine')
  now = report.results.portable(config.to_dict())
  for field, value in result['config'].items():
    if field not in free and now.get(field) != value:
      raise InputError(
        f'{field} = {now.get(field)!r}, but {path} has {value!r}: give another '
        'name'
      )
  return result['metrics']


class Baseline:
  """A small model's steps, measured first and last."""

  def __init__(self, config, meter, most: int, capacity: int, context: int):
    """Compiles the steps.

    Args:
      config: has `baseline`, `dtype`, `rounds`, `seconds` and `settle`.
      most: requests.
      capacity, context: of each.
    """
    self._config, self._meter = config, meter
    cfg = target_config(config.baseline)
    params = random_target(cfg, common.dtype(config.dtype))
    batch = min(most, _BATCH)
    one = workload.tier(
      cfg, capacity, batch, available_bytes() or 0, config.dtype
    )
    self._piece = workload.Piece(
      'decode', one, one.batch, context, config.rounds
    )
    self._work = workload.Workload(cfg, params, [self._piece])
    self._row = dict(kind='baseline', target=config.baseline)
    self._found = []

  def measure(self, rows: list[dict]) -> None:
    """Adds a row."""
    work, piece = self._work, self._piece
    work.run(piece)
    window = windows.steady(
      lambda: work.run(piece), self._config.seconds, self._config.settle
    )
    work.leave()
    found = windows.read(self._meter, window)
    self._found.append(found.joules)
    rows.append(self._row | dict(
      watts=found.watts, seconds=found.seconds, joules=found.joules,
      batch=piece.batch, **self._meter.state(),
    ))  # fmt: skip

  def say(self) -> str:
    """Whether anything drifted."""
    apart = abs(self._found[-1] / self._found[0] - 1)
    verdict = 'within' if apart <= _DRIFT else 'NOT within'
    return f'baseline: {apart:.1%} from first to last, {verdict} {_DRIFT:.0%}'
