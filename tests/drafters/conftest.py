"""Fixtures of the drafter tests."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters.codes import codes_hash, fit_basis, token_codes
from tests.drafters.runs import GOLDEN, Run, Trained, load_run


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


@pytest.fixture
def copied(tmp_path):
  """Copies a golden checkpoint, with changes to config and tensors."""

  def copy(name, config=(), tensors=(), drop=()):
    path = tmp_path / name
    path.mkdir(exist_ok=True)
    hf = json.loads((GOLDEN / name / 'config.json').read_text())
    for key, value in dict(config).items():
      *outer, last = key.split('.')
      inside = hf
      for part in outer:
        inside = inside.setdefault(part, {})
      if value is None:
        inside.pop(last, None)
      else:
        inside[last] = value
    weights = load_file(GOLDEN / name / 'model.safetensors') | dict(tensors)
    weights = {k: v for k, v in weights.items() if k not in drop}
    (path / 'config.json').write_text(json.dumps(hf))
    save_file(weights, path / 'model.safetensors')
    codes = GOLDEN / name / 'transfer.safetensors'
    if codes.exists():
      shutil.copy(codes, path)
    return path

  return copy
