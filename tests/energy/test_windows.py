"""What runs inside a window, and what is made of its joules."""

import time

import jax.numpy as jnp
import pytest

from spinejax.energy import windows
from spinejax.energy.trace import Energy


class Log(list):
  """Calls of 20 ms, by name and time."""

  def call(self, name):
    def run():
      self.append((name, time.time()))
      time.sleep(0.02)
      return jnp.zeros(1)

    return run


def test_steady_calls_are_never_waited_for():
  log = Log()
  began = time.time()
  window = windows.steady(log.call('work'), seconds=0.2, settle=0.1)
  assert window.start - began >= 0.1 and window.end - window.start >= 0.2
  # When a call ended, the next one had begun: these end in the window, those
  # before it, and one is left over.
  before = [at for _, at in log if at < window.start]
  inside = [at for _, at in log if window.start <= at < window.end]
  assert len(inside) == window.calls
  assert len(log) == len(before) + len(inside)
  assert window.calls == pytest.approx(10, abs=3)


def test_other_work_surrounds_a_long_call():
  log = Log()
  window = windows.between(log.call('whole'), log.call('filler'), 0.0, 0.05)
  names = [name for name, _ in log]
  assert names[-2:] == ['whole', 'filler'] and window.calls == 1
  assert set(names[:-2]) == {'filler'}
  (whole,) = [at for name, at in log if name == 'whole']
  assert window.start <= whole < window.end <= log[-1][1]


class Toy:
  """600 W while busy; idle at 100 W."""

  def energy(self, start, end, busy=True):
    joules = (600 if busy else 100) * (end - start)
    return Energy(joules, end - start, 1.1 * joules if busy else None)


def test_gross_and_net():
  found = windows.read(Toy(), windows.Window(11, 15, 8))
  assert found.seconds == 0.5 and found.joules == 300 and found.watts == 600
  assert found.integrated == pytest.approx(330)
  idle = windows.idle_watts(Toy(), windows.Window(20, 22, 0))
  assert idle == 100 and found.net(idle) == 300 - 50
