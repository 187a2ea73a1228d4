"""The target's states for a whole data set, computed once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.memory import available_bytes
from spinejax.target.model import TargetParams, forward, init_cache
from spinejax.train.self_data import Sequences

_ROWS = 32  # sequences a forward pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Corpus:
  """Sequences on the device, with what a drafter learns from.

  Attributes:
    tokens_NT, loss_mask_NT: see `Sequences`.
    features_NTP: tapped target states, in the target's dtype.
    teacher_NTD: final-normed target states.
  """

  tokens_NT: jax.Array
  loss_mask_NT: jax.Array
  features_NTP: jax.Array
  teacher_NTD: jax.Array


def check_size(target: Target, data: Sequences, taps: tuple[int, ...]) -> None:
  """Refuses states that do not fit into the device's memory.

  Raises:
    InputError: says how much is needed and how much there is.
  """
  N, T = data.tokens_NT.shape
  values = _padded(N) * T * target.cfg.width * (len(taps) + 1)
  need = values * target.params.embed_VD.dtype.itemsize
  have = available_bytes()
  if have is not None and need > 0.8 * have:
    raise InputError(
      f'the states of {N} sequences need {need / 2**30:.1f} GiB, '
      f'{have / 2**30:.1f} GiB are free; use fewer sequences'
    )


def _padded(sequences: int) -> int:
  return -(-sequences // _ROWS) * _ROWS


def compute_corpus(
  target: Target, data: Sequences, taps: tuple[int, ...]
) -> Corpus:
  """Runs the target once over all sequences and keeps its states.

  A sequence is read many times in training; keeping its states costs
  (taps + 1) x width values a token and saves the target's forward pass in
  every step.

  Raises:
    InputError: the states do not fit into the device's memory.
  """
  check_size(target, data, taps)
  cfg, dtype = target.cfg, target.params.embed_VD.dtype
  N, T = data.tokens_NT.shape
  padded = _padded(N)
  tokens_NT = jnp.asarray(np.pad(data.tokens_NT, [(0, padded - N), (0, 0)]))
  features = jnp.zeros((padded, T, cfg.width * len(taps)), dtype)
  teacher = jnp.zeros((padded, T, cfg.width), dtype)
  for row in range(0, padded, _ROWS):
    features, teacher = _fill(
      cfg, taps, target.params, tokens_NT, features, teacher, jnp.int32(row)
    )
  return Corpus(tokens_NT, jnp.asarray(data.loss_mask()), features, teacher)


@functools.partial(
  jax.jit,
  static_argnames=('cfg', 'taps'),
  donate_argnames=('features', 'teacher'),
)
def _fill(
  cfg: TargetConfig,
  taps: tuple[int, ...],
  params: TargetParams,
  tokens_NT: jax.Array,
  features: jax.Array,
  teacher: jax.Array,
  row: jax.Array,
):
  """States of the `_ROWS` sequences from `row` on, put in their place."""
  tokens_BT = jax.lax.dynamic_slice_in_dim(tokens_NT, row, _ROWS)
  cache = init_cache(cfg, *tokens_BT.shape, params.embed_VD.dtype)
  out = forward(cfg, params, tokens_BT, cache, taps)
  place = jax.lax.dynamic_update_slice_in_dim
  return (
    place(features, out.features_BQP, row, 0),
    place(teacher, out.hidden_BQD, row, 0),
  )
