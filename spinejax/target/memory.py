"""How much memory a configuration needs, before anything is allocated."""

import os

import jax
import jax.numpy as jnp

from spinejax.errors import InputError
from spinejax.target.config import TargetConfig, layer_weights

# Prompt tokens read at once.
PREFILL_CHUNK = 128


def kv_bytes(shape, batch: int, capacity: int, dtype) -> int:
  """Bytes of the keys and values of a model of `shape`."""
  rows = batch * capacity * shape.layers
  return 2 * rows * shape.kv_heads * shape.head_dim * jnp.dtype(dtype).itemsize


def memory_table(
  cfg: TargetConfig, draft_cfg, batch: int, capacity: int, dtype
) -> dict[str, int]:
  """Bytes by part: weights, caches and the widest activations (*modelled*).

  Args:
    draft_cfg: a drafter's config, or None; its weights are counted by shape
      where it has layers.
  """
  item = jnp.dtype(dtype).itemsize
  # The target reads a chunk of a prompt or a block; the drafter only a block.
  rows = draft_cfg.slots + 1 if draft_cfg is not None else 1
  score_rows = max(
    cfg.heads * max(rows, PREFILL_CHUNK),
    getattr(draft_cfg, 'heads', 0) * rows,
  )
  table = {
    'target weights': cfg.parameters * item,
    'target KV cache': kv_bytes(cfg, batch, capacity, dtype),
    'logits': batch * rows * cfg.vocab * 4,
    'attention scores': batch * score_rows * capacity * 4,
  }
  if hasattr(draft_cfg, 'layers'):
    inputs = len(draft_cfg.taps) * draft_cfg.width**2
    weights = (
      draft_cfg.layers * layer_weights(draft_cfg)
      + inputs
      + draft_cfg.head_weights
    )
    if hasattr(draft_cfg, 'rank'):  # readouts, writes; three shared matrices
      rank, message = draft_cfg.rank, draft_cfg.message
      weights += draft_cfg.layers * draft_cfg.width * (rank + message)
      weights += 3 * message * rank
    table['draft weights'] = weights * item
    table['draft KV cache'] = kv_bytes(draft_cfg, batch, capacity, dtype)
  if hasattr(draft_cfg, 'rank'):
    table['token codes'] = draft_cfg.vocab * draft_cfg.rank * item
  table['total'] = sum(table.values())
  return table


def available_bytes() -> int | None:
  """Free memory of the first device, or None if it cannot be told."""
  device = jax.local_devices()[0]
  stats = device.memory_stats()
  if stats and 'bytes_limit' in stats:
    return stats['bytes_limit'] - stats['bytes_in_use']
  if device.platform == 'cpu':
    free = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_AVPHYS_PAGES')
    return free // jax.local_device_count()  # they share one memory
  return None


def check_memory(target, draft, batch: int, capacity: int) -> None:
  """Refuses what cannot fit, before it is allocated.

  Of a target on a mesh each device has an equal part of what is counted here.
  The caches stay and the scores of a layer come and go: where the caches alone
  are too much, only they are named.

  Raises:
    InputError: says how much is needed and how much there is.
  """
  dtype = target.params.embed_VD.dtype
  table = memory_table(target.cfg, draft.drafter.cfg, batch, capacity, dtype)
  devices = 1 if target.mesh is None else target.mesh.size
  table = {part: size / devices for part, size in table.items()}
  need = sum(v for k, v in table.items() if 'KV' in k or k == 'logits')
  have = available_bytes()
  each = '' if target.mesh is None else f' on each of {devices} devices'
  for what, more in (
    ('caches and logits', 0),
    ('caches, logits and attention scores', table['attention scores']),
  ):
    if have is not None and need + more > have:
      raise InputError(
        f'batch {batch} at capacity {capacity} needs '
        f'{(need + more) / 2**30:.1f} GiB{each} for {what}; '
        f'{have / 2**30:.1f} GiB are free'
      )
