"""Fixtures of the drafter tests."""

import pytest

from tests.drafters.runs import Run, load_run


@pytest.fixture(scope='session')
def flash() -> Run:
  return load_run('dflash-b6')


@pytest.fixture(scope='session')
def sliding() -> Run:
  return load_run('dflash-sliding')


@pytest.fixture(scope='session')
def spine() -> Run:
  return load_run('dspine-b6')
