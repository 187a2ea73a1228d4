"""Fixtures that several test packages share."""

import importlib.util
import os
import pathlib
import re

import pytest

# Before anything imports jax: what the tests compare is float32 on the CPU.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')


# Half a minute and more each: begun last, one process would wait for another.
_LONG = ('test_sharding', 'test_colab', 'test_resume', 'test_demo')


# A browser and its driver are a target of their own: `make test-browser`.
if importlib.util.find_spec('selenium') is None:
  collect_ignore = ['browser']


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: not any(name in item.nodeid for name in _LONG))


@pytest.fixture(scope='session')
def golden() -> pathlib.Path:
  """What transformers computes, and the checkpoints it computed it from."""
  return pathlib.Path(__file__).parent / 'golden' / 'transformers'


@pytest.fixture(scope='session')
def refused():
  """`with refused(message):` expects an InputError that says just that.

  What stands for `...` in the message may be any text of one line.
  """
  from spinejax.errors import InputError

  def expect(message: str):
    pattern = '.+'.join(re.escape(part) for part in message.split('...'))
    return pytest.raises(InputError, match=rf'\A{pattern}\Z')

  return expect


@pytest.fixture(scope='session')
def smollm2():
  """SmolLM2-135M-Instruct in float32, loaded once a process."""
  from spinejax.target import load_target

  return load_target('smollm2-135m')
