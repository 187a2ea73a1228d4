"""Meters on fake devices: what is read, and what is refused."""

import sys
import time
import types

import pytest

from spinejax.energy import meters, windows
from spinejax.energy.meters import Recorder, Source


class ZeusError(Exception):
  """Stands for `zeus.exception.ZeusBaseError`."""


@pytest.fixture(autouse=True)
def zeus(monkeypatch):
  """zeus without its packages; what is asked of the real one is checked at
  the end."""
  made = types.ModuleType('zeus.device')
  made.get_gpus = made.get_cpus = None
  errors = types.ModuleType('zeus.exception')
  errors.ZeusBaseError = ZeusError
  for module in (types.ModuleType('zeus'), made, errors):
    monkeypatch.setitem(sys.modules, module.__name__, module)
  return made


class Gpu:
  """A GPU that draws 300 W; in milliwatts and millijoules, as NVML says."""

  supported, limit, handle = True, 700e3, 'handle'

  def __init__(self):
    self.began = time.time()

  def supports_get_total_energy_consumption(self):
    return self.supported

  def get_power_management_limit(self):
    return self.limit

  def get_name(self):
    return 'Toy'

  def get_total_energy_consumption(self):
    return 1e3 * 300 * (time.time() - self.began)

  def get_instant_power_usage(self):
    return 300e3

  def get_gpu_temperature(self):
    return 40


def with_gpus(zeus, *gpus):
  zeus.get_gpus = lambda: types.SimpleNamespace(gpus=gpus)


def test_gpu_by_its_counter(zeus):
  with_gpus(zeus, Gpu())
  with meters.open_meter('gpu') as meter:
    assert meter.source == 'energy counter of Toy'
    assert meter.period_s == 0.1
    window = windows.idle(1.0, 0.2)
    reading = meter.energy(window.start, window.end)
  assert reading.watts == pytest.approx(300, rel=0.02)
  assert reading.integrated == pytest.approx(reading.joules, rel=0.02)


def test_temperature_and_clocks(zeus, monkeypatch):
  pynvml = types.ModuleType('pynvml')
  pynvml.NVMLError, pynvml.NVML_CLOCK_SM = ZeusError, 'sm'
  pynvml.nvmlDeviceGetClockInfo = lambda handle, which: {'sm': 1980}[which]
  pynvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [handle]
  monkeypatch.setitem(sys.modules, 'pynvml', pynvml)
  with_gpus(zeus, Gpu())
  state = meters.gpu().state
  assert state() == dict(celsius=40, core_mhz=1980, processes=1)

  def untold(handle):
    raise pynvml.NVMLError

  pynvml.nvmlDeviceGetComputeRunningProcesses = untold
  assert state() == {}


def test_no_gpu_is_no_zero(zeus, refused):
  with_gpus(zeus)
  with refused('meter gpu: zeus found no GPU'):
    meters.open_meter('gpu')
  one = Gpu()
  with_gpus(zeus, one)
  with refused('meter gpu: GPU 3, expected one of the 1 there are'):
    meters.gpu(3)
  one.supported = False
  with refused('meter gpu: GPU 0 has no energy counter'):
    meters.gpu()


def test_errors_of_the_driver_are_one_line(zeus, monkeypatch, refused):
  def unable():
    raise ZeusError('Not\nSupported')

  one = Gpu()
  with_gpus(zeus, one)
  # Without power there is nothing to compare with, and this is told.
  monkeypatch.setattr(one, 'get_instant_power_usage', unable)
  source = meters.gpu()
  assert source.name == (
    'energy counter of Toy, without power to compare (Not Supported)'
  )
  joules, watts = source.read()
  assert joules >= 0 and watts is None
  monkeypatch.setattr(one, 'get_total_energy_consumption', unable)
  with refused('Not Supported'):
    meters.open_meter('gpu')


def test_without_zeus(monkeypatch, refused):
  monkeypatch.setitem(sys.modules, 'zeus.device', None)
  with refused("meter gpu: zeus is missing, install it: pip install '...'"):
    meters.open_meter('gpu')


def package(name, cpu_mj, dram_mj):
  answer = types.SimpleNamespace(cpu_mj=cpu_mj, dram_mj=dram_mj)
  return types.SimpleNamespace(
    rapl_file=types.SimpleNamespace(name=name),
    get_total_energy_consumption=lambda: answer,
  )


def test_cpu_counts_each_package_once(zeus, refused):
  there = [package('package-0', 2e3, 1e3), package('package-1', 4e3, None),
           package('psys', 99e3, None)]  # fmt: skip
  handle = types.SimpleNamespace(cpus=there)
  zeus.get_cpus = lambda: handle
  source = meters.cpu()
  assert source.name == 'RAPL of 2 packages'
  assert source.read() == (7.0, None)
  handle.cpus = there[2:]
  with refused('meter cpu: RAPL names no package'):
    meters.cpu()


def test_cpu_without_rapl_says_so(zeus, refused):
  def unable():
    raise ZeusError('RAPL unavailable')

  zeus.get_cpus = unable
  with refused('meter cpu: RAPL unavailable'):
    meters.open_meter('cpu')


def test_no_meter(refused, tmp_path):
  with refused(
    'meter tpu: TPUs publish neither power nor energy; give csv:...'
  ):
    meters.open_meter('tpu')
  with refused("meter = 'watt', expected gpu, cpu or csv:<file>"):
    meters.open_meter('watt')
  with refused(f'{tmp_path}/none.csv: No such file or directory'):
    meters.open_meter(f'csv:{tmp_path}/none.csv')
  with refused('poll_s = 0.01, expected at least 0.05'):
    Recorder(Source('toy', lambda: (1.0, 1.0), 0.1), poll_s=0.01)
  with refused('toy: neither a counter nor power'):
    Recorder(Source('toy', lambda: (None, None), 0.1))


def test_a_reading_that_fails_later_is_told(refused):
  answers = iter([(1.0, 5.0), (2.0, 5.0)])

  def read():
    for answer in answers:
      return answer
    raise OSError('gone')

  with Recorder(Source('toy', read, 0.1)) as meter:
    time.sleep(0.2)
    with refused('toy: reading failed: gone'):
      meter.energy(0, 9)


def test_the_first_reading_is_not_kept():
  # codecarbon PR 401: it may cover all time since the device was asked last.
  answers = iter([(0.0, 9e9)])
  source = Source('toy', lambda: next(answers, (1.0, 5.0)), 0.1)
  with Recorder(source) as meter:
    time.sleep(0.12)
    assert set(meter.trace().watts_N) == {5.0}


def test_csv_is_waited_for(tmp_path):
  path = tmp_path / 'power.csv'
  now = time.time()

  def write(seconds):
    lines = [f'{now + t / 10},250' for t in range(int(10 * seconds))]
    path.write_text('\n'.join(['time,watts', *lines]) + '\n')

  write(1)
  meter = meters.open_meter(f'csv:{path}')
  write(5)  # its writer went on
  assert meter.energy(now + 1, now + 4).watts == pytest.approx(250)


def test_the_real_zeus_has_what_is_asked_of_it(monkeypatch, refused):
  for name in ('zeus', 'zeus.device', 'zeus.exception'):
    monkeypatch.delitem(sys.modules, name)
  from zeus import device
  from zeus.device.cpu.common import CpuDramMeasurement
  from zeus.device.gpu.nvidia import NVIDIAGPU
  from zeus.exception import ZeusBaseError

  for name in (
    'supports_get_total_energy_consumption', 'get_power_management_limit',
    'get_name', 'get_total_energy_consumption', 'get_instant_power_usage',
    'get_gpu_temperature',
  ):  # fmt: skip
    assert callable(getattr(NVIDIAGPU, name))
  assert {'cpu_mj', 'dram_mj'} <= set(CpuDramMeasurement.__annotations__)
  try:
    device.get_gpus()
  except ZeusBaseError:
    # The trap: zeus' own monitor begins here, and ends with no joules.
    with refused('meter gpu: ...'):
      meters.open_meter('gpu')
