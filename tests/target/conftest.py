"""Fixtures of the tests of loading."""

import shutil

import pytest


@pytest.fixture
def copy(golden, tmp_path):
  """`copy(name)`: a checkpoint of the fixtures that a test may break."""

  def copied(name):
    return shutil.copytree(golden / name, tmp_path / name)

  return copied
