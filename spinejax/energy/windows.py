"""Windows of work that a meter can be trusted in, and what a call took."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from spinejax.energy.meters import Meter


@dataclasses.dataclass(frozen=True)
class Window:
  """Times between which the device did nothing but `calls` equal calls."""

  start: float
  end: float
  calls: int


def steady(call: Callable[[], Any], seconds: float, settle: float) -> Window:
  """Runs calls back to back, and a window inside which nothing else ran.

  A call is always in flight when the one before it ends, so that the device
  does not wait for the host; and calls go on before the window (clocks, power
  and its readings settle) and after it, so that at neither end a step of the
  counter stands for idle time.

  Args:
    call: starts the work, and returns what to wait for.
    seconds: of the window, at least.
    settle: seconds before it.
  """
  began, ends = time.time(), _ends(call)
  start = next(end for end in ends if end - began >= settle)
  for calls, end in enumerate(ends, 1):
    if end - start >= seconds:
      ends.close()
      return Window(start, end, calls)


def _ends(call: Callable[[], Any]) -> Iterator[float]:
  """When calls end, of which one is always in flight."""
  ahead = call()
  try:
    while True:
      done, ahead = ahead, call()
      jax.block_until_ready(done)
      yield time.time()
  finally:
    jax.block_until_ready(ahead)


def between(
  call: Callable[[], Any], around: Callable[[], Any], seconds: float,
  settle: float,
) -> Window:  # fmt: skip
  """A window of long calls, with other work before and after: see `steady`."""
  began = time.time()
  while True:
    jax.block_until_ready(around())
    start = time.time()
    if start - began >= settle:
      break
  calls = 0
  while (end := time.time()) - start < seconds or not calls:
    jax.block_until_ready(call())
    calls += 1
  jax.block_until_ready(around())
  return Window(start, end, calls)


def idle(seconds: float, settle: float) -> Window:
  """A window in which nothing ran; see `steady`."""
  time.sleep(settle)
  start = time.time()
  time.sleep(seconds)
  return Window(start, time.time(), 0)


@dataclasses.dataclass(frozen=True)
class Reading:
  """What one call in a window took.

  Attributes:
    joules: of a call, idle power included.
    seconds: of a call.
    watts: while it ran.
    integrated: the joules by integrated power, or None.
  """

  joules: float
  seconds: float
  watts: float
  integrated: float | None

  def net(self, idle_watts: float) -> float:
    """Joules of a call without what the idle device draws in that time.

    Args:
      idle_watts: by the same meter, before and after.
    """
    return self.joules - idle_watts * self.seconds


def read(meter: Meter, window: Window) -> Reading:
  """What a call of a steady window took.

  Raises:
    InputError: see `trace.energy`.
  """
  found, calls = meter.energy(window.start, window.end), window.calls
  by_power = None if found.integrated is None else found.integrated / calls
  return Reading(
    found.joules / calls, found.seconds / calls, found.watts, by_power
  )


def idle_watts(meter: Meter, window: Window) -> float:
  """Power of a window in which nothing ran.

  Raises:
    InputError: see `trace.energy`.
  """
  return meter.energy(window.start, window.end, busy=False).watts
