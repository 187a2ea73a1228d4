"""Fixtures that several test packages share."""

import importlib.util
import os
import pathlib
import re
import tempfile

import pytest

# Before anything imports jax, and for the processes that tests start: what
# they compare is float32 on the CPU, and they spend their time in compiling,
# not in computing. In one process some programs optimised and others not
# would differ in their last bits, so it is all of them, but for `optimized`.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')


def pytest_configure(config):
  """With `-n`, what one process of a run has compiled the others load."""
  shared = config.getoption('numprocesses', default=None)
  if shared and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ['JAX_COMPILATION_CACHE_DIR'] = folder.name
    os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
    os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'


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


@pytest.fixture(scope='module')
def optimized():
  """For modules whose programs no other test runs: compiled as users' are."""
  import jax

  found = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', False)
  yield
  jax.config.update('jax_disable_most_optimizations', found)


@pytest.fixture(scope='session')
def smollm2():
  """SmolLM2-135M-Instruct in float32, loaded once a process."""
  from spinejax.target import load_target

  return load_target('smollm2-135m')
