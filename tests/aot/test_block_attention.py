"""Every named shape compiles for the H100 and the TPUs."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.block_attention import gpu, tpu
from pallas_kernels.block_attention.config import TpuConfig
from pallas_kernels.block_attention.shapes import SHAPES
from spinejax.compat import topologies

SETTINGS = dict(eps=1e-6, causal=True)
FEW = ('smollm2_1', 'qwen3-8b_32_ragged')


def arrays(shape, dtype):
  B, Q, G, C = shape.requests, shape.rows, shape.groups, shape.head_dim
  J = shape.heads + 2
  cache = jax.ShapeDtypeStruct((B, G, shape.capacity, C), dtype)
  turn = jax.ShapeDtypeStruct((B, Q, 1, C // 2), jnp.float32)
  scale = jax.ShapeDtypeStruct((C,), dtype)
  return (
    jax.ShapeDtypeStruct((B, Q, G, J, C), dtype), cache, cache,
    jax.ShapeDtypeStruct((B,), jnp.int32), (turn, turn), (scale, scale),
  )  # fmt: skip


@pytest.mark.parametrize('append', (False, True))
@pytest.mark.parametrize('name', SHAPES)
def test_h100(name, append, no_spills):
  def attend(qkv, k, v, length_B, rope, norms):
    B, Q = qkv.shape[:2]
    return gpu.block_attention(
      qkv.reshape(B, Q, -1), k, v, length_B,
      *(x.reshape(B, Q, -1) for x in rope), norms, append=append, **SETTINGS,
    )  # fmt: skip

  given = arrays(SHAPES[name], jnp.bfloat16)
  topologies.compile_for('h100', jax.jit(attend), *given)
  assert no_spills(most_registers=255)


@pytest.mark.parametrize('target', topologies.TARGETS[1:])
@pytest.mark.parametrize('dtype', (jnp.bfloat16, jnp.float32))
@pytest.mark.parametrize('name', SHAPES)
def test_tpu(name, dtype, target):
  attend = functools.partial(
    tpu.block_attention, append=True, config=TpuConfig(), **SETTINGS
  )
  given = arrays(SHAPES[name], dtype)
  topologies.compile_for(target, jax.jit(attend), *given)
