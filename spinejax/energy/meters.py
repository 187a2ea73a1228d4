"""Meters: where joules come from.

GPU: NVIDIA's energy counter, read by zeus. CPU: RAPL, read by zeus. Anything
else, a TPU too: power that its owner records, as a CSV. TPUs publish no power,
so without one their joules can only be modelled (`energy.modelled`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from spinejax.energy import trace as traces
from spinejax.energy.trace import Energy, Trace
from spinejax.errors import InputError

# Seconds between readings. Polled faster, some drivers answer with zeros, and
# polling draws power itself.
_POLL = 0.05
# NVML renews its counter, and its power, every 100 ms; RAPL every millisecond.
_NVML_PERIOD = 0.1
# Seconds to wait for samples from after a window.
_PATIENCE = 10.0


class Meter(Protocol):
  """Anything that knows the joules of a window of time."""

  source: str
  period_s: float

  def energy(self, start: float, end: float, busy: bool = True) -> Energy:
    """See `trace.energy`; times are those of `time.time`."""

  def state(self) -> dict[str, float]:
    """What else the device tells at this moment, for a metric row."""


class _Ready(contextlib.AbstractContextManager):
  """Needs nothing to begin or to end."""

  def __exit__(self, *_) -> None:
    pass

  def state(self) -> dict[str, float]:
    """Nothing is known."""
    return {}


class TraceMeter(_Ready):
  """A meter that has recorded everything already."""

  def __init__(self, trace: Trace):
    self.source, self.period_s = trace.source, trace.period_s
    self._trace = trace

  def energy(self, start: float, end: float, busy: bool = True) -> Energy:
    """See `trace.energy`."""
    return traces.energy(self._trace, start, end, busy)


class CsvMeter(_Ready):
  """Power that something else writes to a CSV while the work runs."""

  def __init__(self, path: str):
    trace = traces.read_csv(path)
    self.source, self.period_s = trace.source, trace.period_s
    self._path = path

  def energy(self, start: float, end: float, busy: bool = True) -> Energy:
    """See `trace.energy`; waits a moment for lines from after the window."""
    patience = time.monotonic() + _PATIENCE
    while True:
      trace = traces.read_csv(self._path)
      if trace.time_N[-1] >= end or time.monotonic() > patience:
        return traces.energy(trace, start, end, busy)
      time.sleep(self.period_s)


@dataclasses.dataclass(frozen=True)
class Source:
  """A device that can be asked for its counter and its power.

  Attributes:
    name: for messages and result files.
    read: joules and watts at this moment, either None.
    period_s: how often they are renewed.
    most_watts: what the device may draw.
    state: what else it tells.
  """

  name: str
  read: Callable[[], tuple[float | None, float | None]]
  period_s: float
  most_watts: float = math.inf
  state: Callable[[], dict[str, float]] = dict


class Recorder(contextlib.AbstractContextManager):
  """Reads a source in the background, from `with` to its end."""

  def __init__(self, source: Source, poll_s: float = _POLL):
    """Reads once, so that what cannot be read fails here.

    Raises:
      InputError: polling too often, or no reading.
    """
    if poll_s < _POLL:
      raise InputError(f'poll_s = {poll_s:g}, expected at least {_POLL:g}')
    self.source, self.period_s = source.name, max(source.period_s, poll_s)
    self._of, self._poll_s = source, poll_s
    self._samples: list[tuple[float, float, float]] = []
    self._failed: Exception | None = None
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._record, daemon=True)
    # The first reading after a pause may cover the pause: it is not kept.
    joules, watts = source.read()
    if joules is None and watts is None:
      raise InputError(f'{source.name}: neither a counter nor power')
    self._has = joules is not None, watts is not None

  def __enter__(self) -> Recorder:
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._stop.set()
    self._thread.join()

  def state(self) -> dict[str, float]:
    """Temperature and clocks, where the device tells them."""
    return self._of.state()

  def trace(self) -> Trace:
    """What was recorded so far.

    Raises:
      InputError: a reading failed.
    """
    if self._failed is not None:
      raise InputError(f'{self.source}: reading failed: {self._failed}')
    columns = np.array(list(self._samples), float).reshape(-1, 3).T
    time_N, joules_N, watts_N = columns
    return Trace(
      self.source, time_N,
      joules_N if self._has[0] else None, watts_N if self._has[1] else None,
      self.period_s, self._of.most_watts,
    )  # fmt: skip

  def energy(self, start: float, end: float, busy: bool = True) -> Energy:
    """See `trace.energy`; waits until the counter moved after the window."""
    patience = time.monotonic() + _PATIENCE
    while True:
      trace = self.trace()
      beyond = trace.time_N.size and trace.time_N[-1] > end + 2 * self.period_s
      if beyond or time.monotonic() > patience:
        return traces.energy(trace, start, end, busy)
      time.sleep(self._poll_s)

  def _record(self) -> None:
    while not self._stop.is_set():
      try:
        joules, watts = self._of.read()
      except Exception as error:  # told by whoever asks for the trace
        self._failed = error
        return
      self._samples.append(
        (time.time(), *(math.nan if x is None else x for x in (joules, watts)))
      )
      self._stop.wait(self._poll_s)


def gpu(index: int = 0) -> Source:
  """NVIDIA's energy counter and instant power of one GPU, through zeus.

  Raises:
    InputError: zeus is not installed, there is no such GPU, or it has no
      counter.
  """
  gpus = _zeus('gpu')
  if not len(gpus.gpus):
    raise InputError('meter gpu: zeus found no GPU')
  if not index < len(gpus.gpus):
    raise InputError(
      f'meter gpu: GPU {index}, expected one of the {len(gpus.gpus)} there are'
    )
  one = gpus.gpus[index]
  if not _zeus_call(one.supports_get_total_energy_consumption):
    raise InputError(f'meter gpu: GPU {index} has no energy counter')
  limit = _zeus_call(one.get_power_management_limit) / 1e3

  name = f'energy counter of {_zeus_call(one.get_name)}'
  try:
    _zeus_call(one.get_instant_power_usage)
  except InputError as error:  # told where the joules are
    name, powered = f'{name}, without power to compare ({error})', False
  else:
    powered = True

  def read():
    joules = _zeus_call(one.get_total_energy_consumption) / 1e3
    # Instant power, asked for by name: on recent GPUs the plain reading is the
    # average of the last second.
    watts = _zeus_call(one.get_instant_power_usage) / 1e3 if powered else None
    return joules, watts

  def state():
    import pynvml  # a requirement of zeus, for what zeus lacks

    clock = functools.partial(pynvml.nvmlDeviceGetClockInfo, one.handle)
    try:
      return dict(
        celsius=_zeus_call(one.get_gpu_temperature),
        core_mhz=clock(pynvml.NVML_CLOCK_SM),
        processes=len(pynvml.nvmlDeviceGetComputeRunningProcesses(one.handle)),
      )
    except pynvml.NVMLError:
      return {}  # some containers are not told

  return Source(name, read, _NVML_PERIOD, limit, state)


def cpu() -> Source:
  """RAPL of all packages, and of their memory where it is told, through zeus.

  Raises:
    InputError: zeus is not installed, or RAPL is not there or not readable.
  """
  # Only whole packages: the domain of the platform contains them again.
  packages = [
    one
    for one in _zeus('cpu').cpus
    if getattr(one, 'rapl_file', None) is None
    or one.rapl_file.name.startswith('package')
  ]
  if not packages:
    raise InputError('meter cpu: RAPL names no package')

  def read():
    parts = [_zeus_call(one.get_total_energy_consumption) for one in packages]
    return sum(x.cpu_mj + (x.dram_mj or 0.0) for x in parts) / 1e3, None

  return Source(f'RAPL of {len(packages)} packages', read, _POLL)


def _zeus(kind: str):
  """zeus' handle of all GPUs or CPUs."""
  try:
    from zeus.device import get_cpus, get_gpus
  except ImportError:
    raise InputError(
      f"meter {kind}: zeus is missing, install it: pip install '.[energy]'"
    ) from None
  get = {'gpu': get_gpus, 'cpu': get_cpus}[kind]
  return _zeus_call(get, f'meter {kind}: ')


def _zeus_call(function: Callable[[], Any], where: str = '') -> Any:
  """What zeus answers; its errors, and the system's, in one line."""
  from zeus.exception import ZeusBaseError

  try:
    return function()
  except (ZeusBaseError, OSError) as error:
    raise InputError(f'{where}{" ".join(str(error).split())}') from None


def open_meter(name: str) -> Meter:
  """The meter that a config names; a recorder is to be used in a `with`.

  Args:
    name: 'gpu', 'cpu', 'csv:path/to/power.csv', or '' for that of the device
      JAX computes on.

  Raises:
    InputError: no such meter, or it cannot be read here. There is none of a
      TPU.
  """
  if not name:
    name = jax.default_backend()
  kind, _, path = name.partition(':')
  if kind == 'csv' and path:
    return CsvMeter(path)
  if name == 'gpu':
    return Recorder(gpu())
  if name == 'cpu':
    return Recorder(cpu())
  if name == 'tpu':
    raise InputError(
      'meter tpu: TPUs publish neither power nor energy; give csv:<file> with '
      'the columns time and watts from a power source of yours'
    )
  raise InputError(f'meter = {name!r}, expected gpu, cpu or csv:<file>')
