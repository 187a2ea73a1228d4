"""Joules of a window of time, from what a meter recorded around it.

A counter of energy that moves in steps, or power at moments: both are a trace,
and every doubt about one is an error here, never zero joules.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os

import numpy as np

from spinejax.errors import InputError

# A counter's step is known to a period at either end of a window, so that a
# window of so many periods is wrong by a few per cent at most.
LEAST_PERIODS = 10
# Periods without a sample, and the share of a counter's steps that must be
# there.
_GAP, _STEPS = 5, 0.5
# How far a counter and the integral of power may differ in a busy window; on
# an H200 they were 4 % apart. At idle they may differ by 1.7 times.
_AGREEMENT = 0.15
# Beyond the most that the chip is allowed, readings are not believed.
_BEYOND = 1.25


@dataclasses.dataclass(frozen=True)
class Trace:
  """What a meter recorded; N samples in order of time.

  Attributes:
    source: of the numbers, for messages and result files.
    time_N: seconds, as `time.time`.
    joules_N: an energy counter, or None.
    watts_N: power at these moments, or None.
    period_s: how often the counter, or the power, is renewed.
    most_watts: what the device can draw at most; infinite if unknown.
  """

  source: str
  time_N: np.ndarray
  joules_N: np.ndarray | None
  watts_N: np.ndarray | None
  period_s: float
  most_watts: float = math.inf


@dataclasses.dataclass(frozen=True)
class Energy:
  """Joules of a window.

  Attributes:
    joules: by the counter, or the integral of power where there is none.
    seconds: length of the window.
    integrated: the integral of power, to compare; None without power.
  """

  joules: float
  seconds: float
  integrated: float | None

  @property
  def watts(self) -> float:
    return self.joules / self.seconds


def energy(trace: Trace, start: float, end: float, busy: bool = True) -> Energy:
  """Joules between two moments.

  Args:
    busy: compare counter and power, which need not agree at idle.

  Raises:
    InputError: a window that is too short, or that samples do not cover; a
      counter that is missing, stuck or falls; power that is not there, or more
      than the device can draw; counter and power that disagree.
  """
  name, period = trace.source, trace.period_s
  least = LEAST_PERIODS * period
  if not end - start >= least * (1 - 1e-9):
    raise InputError(
      f'{name}: a window of {end - start:.3g} s is too short: readings change '
      f'every {period:.3g} s, expected at least {least:.3g} s'
    )
  _check_cover(trace, start, end)
  integrated = None
  if trace.watts_N is not None:
    integrated = _integral(trace, start, end)
  if trace.joules_N is not None:
    joules = _counted(trace, start, end)
  elif integrated is None:
    raise InputError(f'{name}: neither a counter nor power was recorded')
  else:
    joules = integrated
  watts = joules / (end - start)
  if not 0 < watts <= _BEYOND * trace.most_watts:
    raise InputError(
      f'{name}: {watts:.4g} W on average, expected more than 0 and at most '
      f'{trace.most_watts:.4g} W'
    )
  if busy and integrated is not None:
    apart = abs(integrated / joules - 1)
    if apart > _AGREEMENT:
      raise InputError(
        f'{name}: the counter says {joules:.4g} J, integrated power '
        f'{integrated:.4g} J: {apart:.0%} apart, expected at most '
        f'{_AGREEMENT:.0%}'
      )
  return Energy(joules, end - start, integrated)


def _check_cover(trace: Trace, start: float, end: float) -> None:
  time_N = trace.time_N
  if not time_N.size:
    raise InputError(f'{trace.source}: no samples, expected some')
  if (np.diff(time_N) <= 0).any():
    raise InputError(f'{trace.source}: the samples are not in order of time')
  if time_N[0] > start or time_N[-1] < end:
    raise InputError(
      f'{trace.source}: samples from {time_N[0] - start:+.3g} s to '
      f"{time_N[-1] - start:+.3g} s of the window's start, expected to cover "
      f'its {end - start:.3g} s'
    )
  first, last = np.searchsorted(time_N, [start, end])
  gap = np.diff(time_N[max(first - 1, 0) : last + 1]).max()
  if gap > _GAP * trace.period_s * (1 + 1e-9):
    raise InputError(
      f'{trace.source}: no sample for {gap:.3g} s, expected one every '
      f'{trace.period_s:.3g} s'
    )


def _counted(trace: Trace, start: float, end: float) -> float:
  """The counter's rise, interpolated between its steps."""
  time_N, joules_N = trace.time_N, trace.joules_N
  if not np.isfinite(joules_N).all():
    raise InputError(f'{trace.source}: readings of the counter are missing')
  rise_N = np.diff(joules_N)
  if (rise_N < 0).any():
    i = int((rise_N < 0).argmax())
    raise InputError(
      f'{trace.source}: the counter falls by {-rise_N[i]:.4g} J at sample '
      f'{i + 1}'
    )
  stepped_N = np.concatenate([[False], rise_N > 0])
  inside_N = (time_N >= start) & (time_N <= end)
  steps = int((stepped_N & inside_N).sum())
  expected = (end - start) / trace.period_s
  if steps < _STEPS * expected:
    raise InputError(
      f'{trace.source}: the counter moved {steps} times in '
      f'{end - start:.3g} s, expected about {expected:.0f}'
    )
  at, value = time_N[stepped_N], joules_N[stepped_N]
  if at[0] > start or at[-1] < end:
    raise InputError(
      f'{trace.source}: no step of the counter before and after the window, '
      'expected to record on for a moment at both ends'
    )
  return float(np.interp(end, at, value) - np.interp(start, at, value))


def _integral(trace: Trace, start: float, end: float) -> float:
  """Integral of power, linear between the samples."""
  time_N, watts_N = trace.time_N, trace.watts_N
  inside_N = (time_N > start) & (time_N < end)
  at = np.concatenate([[start], time_N[inside_N], [end]])
  # Those between which power is interpolated.
  first, last = np.searchsorted(time_N, [start, end])
  near = watts_N[max(first - 1, 0) : last + 1]
  if not (np.isfinite(near).all() and (near > 0).all()):
    raise InputError(
      f'{trace.source}: power of zero or none in the window, expected more '
      'than 0 W throughout'
    )
  return float(np.trapezoid(np.interp(at, time_N, watts_N), at))


def read_csv(path: str | os.PathLike[str]) -> Trace:
  """Power that anything else recorded, as a CSV with `time` and `watts`.

  `time` is in seconds as `date +%s.%N` gives it, `watts` what the whole device
  draws. Other columns are ignored.

  Raises:
    InputError: no such file, missing columns, or a bad value with its line.
  """
  try:
    with open(path, encoding='utf-8-sig', newline='') as file:
      reader = csv.DictReader(file)
      reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
      for name in ('time', 'watts'):
        if name not in reader.fieldnames:
          raise InputError(f'{path}: no column {name}, expected time and watts')
      samples = [
        (_positive(path, reader.line_num, row, 'time'),
         _positive(path, reader.line_num, row, 'watts'))
        for row in reader
      ]  # fmt: skip
  except OSError as error:
    raise InputError(f'{path}: {error.strerror}') from None
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(f'{path}: not a CSV in UTF-8: {error}') from None
  if len(samples) < 2:
    raise InputError(f'{path}: {len(samples)} samples, expected at least 2')
  time_N, watts_N = np.array(samples).T
  period = float(np.median(np.diff(time_N)))
  if period <= 0:
    raise InputError(f'{path}: the samples are not in order of time')
  name = f'power of {os.path.basename(path)}'
  return Trace(name, time_N, None, watts_N, period)


def _positive(path, line: int, row: dict, name: str) -> float:
  try:
    value = float(row[name])
  except (TypeError, ValueError):
    value = math.nan
  if not (math.isfinite(value) and value > 0):
    raise InputError(
      f'{path}, line {line}: {name} = {row[name]!r}, expected a number of '
      'more than 0'
    )
  return value
