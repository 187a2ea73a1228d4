"""Joules of windows, and every way in which readings have misled others."""

import dataclasses
import math

import numpy as np
import pytest

from spinejax.energy import trace
from spinejax.energy.trace import Trace


def recorded(power, seconds=12.0, poll=0.05, period=0.1, **fields) -> Trace:
  """What polling a counter that moves once a period shows of a power(t)."""
  fine = np.arange(0, seconds, 1e-3)
  joules = np.cumsum(power(fine)) * 1e-3
  time_N = np.arange(0, seconds, poll) + 0.013
  ticks = (np.floor(time_N / period) * period * 1e3).astype(int)
  watts_N = power(time_N)
  made = Trace('counter', time_N, joules[ticks], watts_N, period, 700.0)
  return dataclasses.replace(made, **fields)


def flat(t):
  return 0 * t + 500.0


def busy(t):
  return np.where((t > 3) & (t < 9), 600.0, 120.0)


def test_a_window_of_constant_power():
  found = trace.energy(recorded(flat), 2.0, 5.0)
  assert found.seconds == pytest.approx(3)
  assert found.joules == pytest.approx(1500, rel=1e-3)
  assert found.watts == pytest.approx(500, rel=1e-3)
  assert found.integrated == pytest.approx(1500, rel=1e-6)


@pytest.mark.parametrize('start', np.linspace(4, 5, 7))
def test_wherever_it_lies_among_the_steps(start):
  # Of 1.3 s, thirteen steps: counted in whole steps it would be 8 % off.
  found = trace.energy(recorded(busy), start, start + 1.3)
  assert found.joules == pytest.approx(1.3 * 600, rel=2e-3)


def test_power_alone_is_integrated_and_not_sampled_at_the_end():
  def ramp(t):
    return 100 + 50 * t

  found = trace.energy(recorded(ramp, joules_N=None), 2, 8)
  assert found.joules == pytest.approx(6 * (100 + 50 * 5), rel=1e-6)


def test_power_from_the_first_sample_to_the_last(refused):
  time_N = np.arange(0, 2.05, 0.1)
  made = Trace('log', time_N, None, 0 * time_N + 5.0, 0.1)
  assert trace.energy(made, 0, time_N[-1]).joules == pytest.approx(10)
  made.watts_N[[0, -1]] = 0
  for window in ((0, 1.5), (0.5, time_N[-1])):
    with refused('log: power of zero or none in the window, ...'):
      trace.energy(made, *window)


def test_a_counter_alone():
  found = trace.energy(recorded(flat, watts_N=None), 2, 5)
  assert found.joules == pytest.approx(1500, rel=1e-3)
  assert found.integrated is None


def test_idle_may_disagree_and_work_may_not(refused):
  # Seen by others: 187 J counted and 327 J polled, over 5 s at idle.
  odd = recorded(flat, watts_N=recorded(flat).watts_N * 327 / 187)
  found = trace.energy(odd, 2, 7, busy=False)
  assert found.joules == pytest.approx(2500, rel=1e-3)
  with refused('counter: the counter says 2500 J, integrated power 4372 J: '
               '75% apart, expected at most 15%'):  # fmt: skip
    trace.energy(odd, 2, 7)


def spoilt(at, value, field='joules_N', add=False):
  made = recorded(flat)
  column = getattr(made, field).copy()
  column[at] = value + add * column[at]
  return dataclasses.replace(made, **{field: column})


EMPTY = np.zeros(0)
CASES = {
  # zeus #32, pynvml #18: shorter than a step, a counter reads 0 J.
  'short': (recorded(flat), (2.0, 2.5), 'a window of 0.5 s is too short: '
            'readings change every 0.1 s, expected at least 1 s'),
  'backwards': (recorded(flat), (3.0, 2.0), 'a window of -1 s is too short...'),
  # No GPU: an empty answer, whose sum is zero.
  'empty': (Trace('counter', EMPTY, EMPTY, None, 0.1), (2, 5),
            'no samples, expected some'),
  'nothing': (recorded(flat, joules_N=None, watts_N=None), (2, 5),
              'neither a counter nor power was recorded'),
  # codecarbon #1316: no reading is not zero.
  'missing': (spoilt(50, np.nan), (2, 5), 'readings of the counter are ...'),
  'no power': (spoilt(50, np.nan, 'watts_N'), (2, 5),
               'power of zero or none in the window, expected more than ...'),
  # zeus #186: zeros of a driver that was polled too often.
  'zero power': (spoilt(50, 0.0, 'watts_N'), (2, 5), 'power of zero or ...'),
  # compute-runtime #938: a dip, then 3.69 TW by wrapping around.
  'dip': (spoilt(50, 3.0), (2, 5), 'the counter falls by ... J at sample 50'),
  'wrap': (spoilt(slice(50, None), 2**64 / 1e6, add=True), (2, 5),
           '... W on average, expected more than 0 and at most 700 W'),
  # zeus #113: stuck, wholly or nearly.
  'stuck': (recorded(flat, joules_N=np.full(240, 9.0)), (2, 5), 'the counter '
            'moved 0 times in 3 s, expected about 30'),
  'slow': (recorded(flat, period=1.0, period_s=0.1), (2, 5), 'the counter '
           'moved 3 times in 3 s, expected about 30'),
  'absurd': (recorded(lambda t: 0 * t + 5000.0), (2, 5),
             '5000 W on average, expected more than 0 and at most 700 W'),
  # codecarbon #117: a moment of readings, stretched over the whole.
  'after': (recorded(flat), (8, 15), 'samples from ... to +3.96 s of the '
            "window's start, expected to cover its 7 s"),
  'before': (recorded(flat), (-1, 3), 'samples from +1.01 s to ...'),
  'order': (recorded(flat, time_N=recorded(flat).time_N[::-1]), (2, 5),
            'the samples are not in order of time'),
}  # fmt: skip


@pytest.mark.parametrize('case', CASES)
def test_what_cannot_be_trusted_is_refused(case, refused):
  made, window, message = CASES[case]
  with refused(f'counter: {message}'):
    trace.energy(made, *window)


def test_a_gap_is_refused(refused):
  whole = recorded(flat)
  kept = (whole.time_N < 3) | (whole.time_N > 3.9)
  holed = dataclasses.replace(
    whole, time_N=whole.time_N[kept], joules_N=whole.joules_N[kept],
    watts_N=whole.watts_N[kept],
  )  # fmt: skip
  with refused('counter: no sample for 0.95 s, expected one every 0.1 s'):
    trace.energy(holed, 2, 5)
  trace.energy(holed, 4, 7)  # elsewhere


def test_csv(tmp_path, refused):
  path = tmp_path / 'own.csv'
  lines = [f'{1e9 + t / 10},{100 + t}' for t in range(100)]
  path.write_text('\n'.join(['time, watts', *lines]))
  made = trace.read_csv(path)
  assert made.source == 'power of own.csv' and math.isinf(made.most_watts)
  assert made.period_s == pytest.approx(0.1)
  found = trace.energy(made, 1e9 + 2, 1e9 + 6)
  assert found.joules == pytest.approx(4 * 140, rel=1e-6)
  for text, message in (
    ('time,power\n1,2\n', 'no column watts, expected time and watts'),
    ('', 'no column time, expected time and watts'),
    ('time,watts\n1,2\n', '1 samples, expected at least 2'),
    ('time,watts\n2,2\n1,3\n', 'the samples are not in order of time'),
  ):
    path.write_text(text)
    with refused(f'{path}: {message}'):
      trace.read_csv(path)
  for value in ('-3', 'nan', '', '0', 'x'):
    path.write_text(f'time,watts\n1,2\n2,{value}\n')
    with refused(f'{path}, line 3: watts = {value!r}, expected a number of '
                 'more than 0'):  # fmt: skip
      trace.read_csv(path)
