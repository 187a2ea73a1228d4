"""Fixtures of the drafter tests."""

import dataclasses

import jax.numpy as jnp
import pytest

from spinejax.drafters.codes import codes_hash, fit_basis, token_codes
from tests.drafters.runs import Run, Trained, load_run


@pytest.fixture(scope='session')
def flash() -> Run:
  return load_run('dflash-b6')


@pytest.fixture(scope='session')
def sliding() -> Run:
  return load_run('dflash-sliding')


@pytest.fixture(scope='session')
def spine() -> Run:
  return load_run('dspine-b6')


@pytest.fixture
def trained(spine) -> Trained:
  """The golden drafter, with codes of our own basis."""
  head_VD = spine.target.head_VD
  basis = fit_basis(head_VD, spine.cfg.rank)
  codes = token_codes(head_VD, basis)
  params = dataclasses.replace(spine.params, codes_VR=jnp.float32(codes))
  model = dataclasses.replace(spine.model, params=params)
  return Trained(model, basis, spine.target.head_hash, codes_hash(codes))
