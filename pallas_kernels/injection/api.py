"""The injection after a layer of a DSpine drafter."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import hopper, tuning
from pallas_kernels.injection import config, gpu, reference, tpu

Implementation = Literal['kernel', 'reference'] | None


def injection(
  h_BKD: jax.Array,
  anchor_BR: jax.Array,
  readout_RD: jax.Array,
  receiver_MR: jax.Array,
  predecessor_MR: jax.Array,
  message_MR: jax.Array,
  bias_M: jax.Array,
  write_DM: jax.Array,
  *,
  dense: reference.Dense = reference.dense,
  implementation: Implementation = None,
) -> jax.Array:
  """Adds to each slot a gated message from its left neighbour.

  All predecessors are read before any is written, so slots are parallel.
  Sums are float32.

  Args:
    h_BKD: the layer's output; slot 0, the anchor's, is left as it is.
    anchor_BR: the anchor's code, times sqrt(r): slot 1's predecessor.
    readout_RD, write_DM: W_R and W_O of the layer.
    receiver_MR, predecessor_MR, message_MR, bias_M: shared by the layers.
    dense: the product of the reference.
    implementation: 'kernel' runs it or raises; None takes it where it was
      measured to win.

  Returns:
    h_BKD after the injection.

  Raises:
    NotImplementedError: the kernel is asked for and takes no such shapes.
  """
  args = (
    h_BKD, anchor_BR, readout_RD, receiver_MR, predecessor_MR, message_MR,
    bias_M, write_DM,
  )  # fmt: skip

  def otherwise(*args):
    return reference.injection(*args, dense=dense)

  B, K, D = h_BKD.shape
  M, R = message_MR.shape
  if implementation == 'reference' or (
    implementation is None
    and not tuning.wins('injection', config.key(B * K, D, R, M))
  ):
    return otherwise(*args)
  bodies = dict(cuda=_on_gpu, tpu=_on_tpu)
  kernels = {
    platform: body
    for platform, body in bodies.items()
    if supported(platform, h_BKD, readout_RD, message_MR)
  }
  if implementation is None:
    return lax.platform_dependent(*args, **kernels, default=otherwise)
  if not kernels:
    raise NotImplementedError(
      f'injection: no kernel takes {h_BKD.dtype} [{B}, {K}, {D}] with rank '
      f'{R} and message {M}'
    )
  return lax.platform_dependent(*args, **kernels)


def supported(
  platform: str, h_BKD: jax.Array, readout_RD: jax.Array, message_MR: jax.Array
) -> bool:
  """Whether a platform's kernel takes these shapes and dtypes.

  XLA cannot partition a kernel, so not on a mesh.
  """
  B, K, D = h_BKD.shape
  M, R = message_MR.shape
  dtypes = {h_BKD.dtype, readout_RD.dtype, message_MR.dtype}
  if len(dtypes) > 1 or jax.typeof(readout_RD).sharding.mesh.size > 1:
    return False
  if platform == 'tpu':
    return dtypes <= {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
  return (
    dtypes == {jnp.dtype(jnp.bfloat16)}
    and D % 64 == R % 64 == M % 64 == 0
    and gpu.chunk_of(B * K, K) is not None
    and hopper.is_at_hand()
  )


# One body for all layers: lowered, and compiled, once.
@jax.jit
def _on_gpu(h_BKD, *args):
  (B, K, D), (M, R) = h_BKD.shape, args[4].shape
  chosen = config.config_for(B * K, D, R, M)
  return gpu.injection(h_BKD, *args, chosen)


@jax.jit
def _on_tpu(h_BKD, *args):
  (B, K, D), (M, R) = h_BKD.shape, args[4].shape
  return tpu.injection(h_BKD, *args, config.tpu_config(B * K, D, R, M))
