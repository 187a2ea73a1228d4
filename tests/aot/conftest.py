"""Compiling for accelerators that are not there: `make test-aot`."""

import importlib.util

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


@pytest.fixture
def every(request) -> bool:
  """Whether all of a test's cases are asked for."""
  return request.config.getoption('--every', default=False)
