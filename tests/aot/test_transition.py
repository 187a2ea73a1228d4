"""Every named shape compiles for the H100 and the TPUs."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.transition import gpu, tpu
from pallas_kernels.transition.config import Config, candidates
from pallas_kernels.transition.shapes import SHAPES
from spinejax.compat import topologies

FEW = ('qwen3-8b_8',)


def arrays(shape, sampled):
  B, S, N, M = shape
  shapes = [(B, S, N, M), (B, S, N, M), (B, S, N), (B, S)]
  given = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
  return given + ([given[2]] * 2 if sampled else [None, None])


@pytest.mark.parametrize('sampled', (False, True))
@pytest.mark.parametrize('name', SHAPES)
def test_h100(name, sampled, every, no_spills):
  for config in candidates() if every else [Config()]:
    topologies.compile_for(
      'h100',
      jax.jit(functools.partial(gpu.transition, config=config)),
      *arrays(SHAPES[name], sampled),
    )
  assert no_spills(most_registers=255)


@pytest.mark.parametrize('target', topologies.TARGETS[1:])
@pytest.mark.parametrize('sampled', (False, True))
@pytest.mark.parametrize('name', SHAPES)
def test_tpu(name, sampled, target):
  topologies.compile_for(
    target, jax.jit(tpu.transition), *arrays(SHAPES[name], sampled)
  )
