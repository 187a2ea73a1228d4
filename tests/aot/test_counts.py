"""What a TPU's compiler counts of a step, beside the analytic counts."""

import pytest

from spinejax.energy.hardware import chip
from spinejax.energy.modelled import compiled_step
from spinejax.target.config import TargetConfig


@pytest.mark.parametrize('name', ['v5e', 'v6e'])
def test_a_tpu_compiler_counts_the_same_operations(name):
  cfg = TargetConfig(
    'llama', vocab=2048, width=512, layers=2, heads=8, kv_heads=4, head_dim=64,
    ffn=1024,
  )  # fmt: skip
  found = compiled_step(chip(name), cfg, 16, 255)
  assert found['flops'] == pytest.approx(1, rel=0.02)
  assert found['bytes'] > 1  # it counts copies of its own
