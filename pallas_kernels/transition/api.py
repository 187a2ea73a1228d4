"""Choosing one path through the candidates of adjacent slots."""

from typing import Literal

import jax
from jax import lax

from pallas_kernels import hopper, tuning
from pallas_kernels.transition import config, gpu, reference, tpu


def transition(
  message_BSNM: jax.Array,
  write_BSNM: jax.Array,
  straight_BSN: jax.Array,
  scale_BS: jax.Array,
  factor_BSN: jax.Array | None = None,
  noise_BSN: jax.Array | None = None,
  *,
  implementation: Literal['kernel', 'reference'] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Scores every pair of candidates of adjacent slots, and walks.

    s[j, i, c] = factor[j, i] (straight[j, c] + scale[j] <message_i, write_c>)

  From candidate 0 of slot 0 on, the walk takes the candidate with the highest
  score, or score and noise, after the one that it took before; of equals the
  first. A positive factor of a predecessor changes no greedy choice. Float32
  throughout: the choice is between close candidates.

  Args:
    message_BSNM: of the predecessors of slot j: N of them, in slot 1 one, N
      times.
    write_BSNM, straight_BSN: of the candidates of slot j.
    scale_BS: of slot j.
    factor_BSN, noise_BSN: both or neither. Noise is Gumbel's for a sample, and
      one vector a slot, since only one row of a slot is used.
    implementation: 'kernel' runs it or raises; None takes it where it was
      measured to win.

  Returns:
    Indices [B, S] of the candidates taken, and with noise the scores
    [B, S, N, N].

  Raises:
    NotImplementedError: the kernel is asked for and takes no such shapes.
  """
  if (factor_BSN is None) != (noise_BSN is None):
    raise ValueError('factor_BSN and noise_BSN: one is None, expected neither')
  args = [message_BSNM, write_BSNM, straight_BSN, scale_BS]
  sampled = noise_BSN is not None
  if sampled:
    args += [factor_BSN, noise_BSN]
  shape = message_BSNM.shape
  if implementation == 'reference' or (
    implementation is None and not tuning.wins('transition', config.key(*shape))
  ):
    return _otherwise(*args)
  bodies = dict(cuda=_on_gpu, tpu=_on_tpu)
  kernels = {p: f for p, f in bodies.items() if supported(p, message_BSNM)}
  if implementation is None:
    return lax.platform_dependent(*args, **kernels, default=_otherwise)
  if not kernels:
    raise NotImplementedError(
      f'transition: no kernel takes [B, S, N, M] = {list(shape)}'
    )
  return lax.platform_dependent(*args, **kernels)


def supported(platform: str, message_BSNM: jax.Array) -> bool:
  """Whether a platform's kernel takes this shape; not on a mesh."""
  _, S, N, M = message_BSNM.shape
  if jax.typeof(message_BSNM).sharding.mesh.size > 1 or S > 128:
    return False
  if platform == 'tpu':
    return N % 8 == 0
  return hopper.ROWS % N == 0 and M % 64 == 0 and hopper.is_at_hand()


def _otherwise(*args):
  index_BS, scores_BSNN = reference.transition(*args)
  return index_BS, scores_BSNN if len(args) > 4 else None


@jax.jit
def _on_gpu(message_BSNM, write_BSNM, straight_BSN, scale_BS, *sampled):
  return gpu.transition(
    message_BSNM, write_BSNM, straight_BSN, scale_BS,
    *(sampled or (None, None)), config.config_for(*message_BSNM.shape),
  )  # fmt: skip


@jax.jit
def _on_tpu(message_BSNM, write_BSNM, straight_BSN, scale_BS, *sampled):
  return tpu.transition(
    message_BSNM, write_BSNM, straight_BSN, scale_BS,
    *(sampled or (None, None)),
  )  # fmt: skip
