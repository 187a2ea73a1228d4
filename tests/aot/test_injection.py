"""Every named shape compiles for the H100 and the TPUs."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.injection import gpu, tpu
from pallas_kernels.injection.config import candidates, heuristic, tpu_config
from pallas_kernels.injection.shapes import SHAPES
from spinejax.compat import topologies

TPUS = topologies.TARGETS[1:]
FEW = ('smollm2_8', 'qwen3-8b_32')


def arrays(shape, dtype):
  B, K, D, R, M = shape
  shapes = (B, K, D), (B, R), (R, D), (M, R), (M, R), (M, R), (M,), (D, M)
  return [jax.ShapeDtypeStruct(x, dtype) for x in shapes]


def of(shape):
  B, K, *widths = shape
  return B * K, *widths


@pytest.mark.parametrize('name', SHAPES)
def test_h100(name, every, no_spills):
  shape = SHAPES[name]
  configs = candidates(*of(shape)) if every else [heuristic(*of(shape))]
  for config in configs:
    topologies.compile_for(
      'h100',
      jax.jit(functools.partial(gpu.injection, config=config)),
      *arrays(shape, jnp.bfloat16),
    )
  assert no_spills(most_registers=168) >= 3


@pytest.mark.parametrize('target', TPUS)
@pytest.mark.parametrize('dtype', (jnp.bfloat16, jnp.float32))
@pytest.mark.parametrize('name', SHAPES)
def test_tpu(name, dtype, target):
  shape = SHAPES[name]
  topologies.compile_for(
    target,
    jax.jit(functools.partial(tpu.injection, config=tpu_config(*of(shape)))),
    *arrays(shape, dtype),
  )
