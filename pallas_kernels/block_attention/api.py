"""Attention of a block of rows over a request's context and over itself.

One call norms and rotates queries and keys, attends and appends the block to
the cache: what follows the QKV product in a layer of a target (`append`) or of
a block drafter.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import hopper, tuning
from pallas_kernels.block_attention import config, gpu, tpu

Rows = tuple[jax.Array, jax.Array, jax.Array]


def block_attention(
  otherwise: Callable[..., Rows],
  qkv_BQGJC: jax.Array,
  k_BGTC: jax.Array,
  v_BGTC: jax.Array,
  length_B: jax.Array,
  rope: tuple[jax.Array, jax.Array],
  norms: tuple[jax.Array, jax.Array] | None,
  *,
  eps: float,
  causal: bool,
  append: bool,
) -> Rows:
  """By a kernel where it is lowered for one and takes the shapes.

  It reads context rows up to each request's length only, whatever the
  capacity. That for Hopper was measured to win at every shape it takes (see
  docs/performance.md); that for TPUs is taken where a tuned table has it win.

  Args:
    otherwise: the same function of the six arrays below in XLA, for all other
      platforms, dtypes and shapes.
    qkv_BQGJC: the fused projection; J = query heads of a group, key, value.
    k_BGTC, v_BGTC: the caches.
    length_B: their valid rows, which every row of the block sees.
    rope: cosine and sine of the block's positions, float32 [B, Q, 1, C/2].
    norms: scales [C] of the norms of queries and keys, or None.
    eps: of these norms.
    causal: a row of the block sees itself and those before it; else all.
    append: write the block's keys and values behind the valid rows. They are
      written in place; rows past them may be overwritten with anything.

  Returns:
    The mixed values [B, Q, G * U * C] of U query heads a group, and the
    caches.
  """
  args = (qkv_BQGJC, k_BGTC, v_BGTC, length_B, rope, norms)
  settings = dict(eps=eps, causal=causal, append=append)
  kernels = {}
  if supported(qkv_BQGJC, k_BGTC):
    kernels['cuda'] = functools.partial(_on_gpu, **settings)
  if _wins_on_tpu(qkv_BQGJC, k_BGTC):
    kernels['tpu'] = functools.partial(_on_tpu, **settings)
  if not kernels:
    return otherwise(*args)
  return lax.platform_dependent(*args, **kernels, default=otherwise)


def supported(qkv_BQGJC: jax.Array, k_BGTC: jax.Array) -> bool:
  """Whether the kernel takes these shapes and dtypes, on the GPU at hand.

  Where there is none, it is assumed that a Hopper is compiled for. XLA cannot
  partition the kernel: on a mesh it would gather the caches.
  """
  _, Q, _, J, C = qkv_BQGJC.shape
  dtypes = {qkv_BQGJC.dtype, k_BGTC.dtype}
  return (
    dtypes == {jnp.dtype(jnp.bfloat16)}
    and gpu.fits(J - 2, Q, C)
    and k_BGTC.shape[2] % 8 == 0  # whole swizzle rows
    and jax.typeof(k_BGTC).sharding.mesh.size <= 1
    and hopper.is_at_hand()
  )


def _shape(qkv_BQGJC, k_BGTC):
  B, Q, G, J, C = qkv_BQGJC.shape
  return B, Q, G, J - 2, C, k_BGTC.shape[2]


def _wins_on_tpu(qkv_BQGJC: jax.Array, k_BGTC: jax.Array) -> bool:
  return (
    qkv_BQGJC.dtype == k_BGTC.dtype
    and jax.typeof(k_BGTC).sharding.mesh.size <= 1
    and jax.local_devices()[0].platform == 'tpu'
    and tuning.wins('block_attention', config.key(*_shape(qkv_BQGJC, k_BGTC)))
  )


@functools.partial(jax.jit, static_argnames=('eps', 'causal', 'append'))
def _on_tpu(qkv, k, v, length_B, rope, norms, **settings):
  chosen = config.tpu_config(*_shape(qkv, k))
  return tpu.block_attention(
    qkv, k, v, length_B, rope, norms, config=chosen, **settings
  )


# One body for all layers: lowered, and compiled, once.
@functools.partial(jax.jit, static_argnames=('eps', 'causal', 'append'))
def _on_gpu(qkv, k, v, length_B, rope, norms, eps, causal, append):
  B, Q = qkv.shape[:2]
  cos, sin = (x.reshape(B, Q, -1) for x in rope)
  if norms is not None:  # of a drafter in another dtype than its target
    norms = tuple(x.astype(k.dtype) for x in norms)
  return gpu.block_attention(
    qkv.reshape(B, Q, -1), k, v, length_B, cos, sin, norms,
    eps=eps, causal=causal, append=append,
  )  # fmt: skip
