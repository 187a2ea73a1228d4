"""Compiling for accelerators that are not there: `make test-aot`."""

import importlib.util
import re

import pytest


def pytest_addoption(parser):
  parser.addoption(
    '--every',
    action='store_true',
    help='all named shapes, types and chips in place of a few',
  )


def pytest_ignore_collect(collection_path):
  """Nothing without the compilers."""
  if importlib.util.find_spec('libtpu') is None:
    return True
  return None


def pytest_collection_modifyitems(config, items):
  """Of the named shapes those in a module's FEW, unless all are asked for."""
  # A kernel that a round has compiled is not compiled, and reported on, again.
  items.sort(key=lambda item: item.path.stem == 'test_rounds')
  if config.getoption('--every', default=False):
    return
  few, rest = [], []
  for item in items:
    name = getattr(item, 'callspec', None) and item.callspec.params.get('name')
    known = getattr(item.module, 'FEW', None)
    (rest if known and name not in known else few).append(item)
  config.hook.pytest_deselected(items=rest)
  items[:] = few


@pytest.fixture(scope='module', autouse=True)
def as_users_compile(optimized):
  """What is counted here are the programs that users get."""


@pytest.fixture
def every(request) -> bool:
  """Whether all of a test's cases are asked for."""
  return request.config.getoption('--every', default=False)


@pytest.fixture
def no_spills(tmp_path, monkeypatch):
  """`no_spills(most_registers)`: of the Hopper kernels compiled so far, none
  spilled, and none takes more registers a thread."""
  monkeypatch.setenv('MOSAIC_GPU_DUMP_TO', str(tmp_path))

  def check(most_registers: int):
    reports = [path.read_text() for path in tmp_path.glob('*.ptxas')]
    for report in reports:
      assert ' 0 bytes spill stores, 0 bytes spill loads' in report
      (used,) = re.findall(r'Used (\d+) registers', report)
      assert int(used) <= most_registers
    return len(reports)

  return check
