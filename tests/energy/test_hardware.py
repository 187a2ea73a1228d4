"""Chips by the names that JAX gives their kinds."""

import pytest

from spinejax.energy.hardware import CHIPS, of_device


@pytest.mark.parametrize(
  'kind, name',
  [
    ('NVIDIA H200', 'h200'), ('NVIDIA H100 80GB HBM3', 'h100'),
    ('TPU v5 lite', 'v5e'), ('TPU v5', 'v5p'), ('TPU v6 lite', 'v6e'),
  ],
)  # fmt: skip
def test_kinds(kind, name):
  assert of_device(kind) is CHIPS[name]


@pytest.mark.parametrize('kind', ['cpu', 'NVIDIA H100 NVL', 'TPU v9'])
def test_an_unknown_kind_is_none(kind):
  assert of_device(kind) is None
