"""Fixtures of the training tests."""

import jax
import pytest


@pytest.fixture(scope='module')
def quick_compilation():
  """These tests spend their time in compiling, not in computing.

  For modules whose programs no other test runs: in one process some programs
  would be optimised and others not, and their last bits differ.
  """
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)
