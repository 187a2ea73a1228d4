"""Every named shape compiles for the H100."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.product import gpu
from pallas_kernels.product.config import candidates, config_for
from pallas_kernels.product.shapes import SHAPES
from spinejax.compat import topologies

FEW = ('qwen3-8b_out_16',)


@pytest.mark.parametrize('name', SHAPES)
def test_h100(name, every, no_spills):
  rows, inputs, outputs = SHAPES[name]
  x = jax.ShapeDtypeStruct((rows, inputs), jnp.bfloat16)
  weight = jax.ShapeDtypeStruct((outputs, inputs), jnp.bfloat16)
  configs = [config_for(rows, outputs, inputs)]
  if every:
    configs += candidates(rows, outputs)
  for config in configs:
    topologies.compile_for(
      'h100', jax.jit(functools.partial(gpu.product, config=config)), x, weight
    )
  assert no_spills(most_registers=128)
