"""Keys and values of prompt prefixes, kept for prompts that begin alike.

A prompt is read in blocks of a fixed number of tokens, from its start. Of
every whole block the rows of both caches are kept under a hash of all tokens
up to its end; a prompt that begins with the same blocks takes the rows over
and is read from there. They are the rows that reading it would have made, to
the last bit: a block is always computed with the same number of rows, behind
the same rows. (Rows of emitted tokens are not kept: verification computes
them in blocks of another size.)

The draft cache has a watermark of its own, and a block is kept only of rows
that lie below both: a drafter that has not been fed the context that the
target has attends to nothing (vllm-project/vllm #47930).
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spinejax.decode.state import DecodeState
from spinejax.drafters.base import DraftCache, Drafter
from spinejax.sharding import constrain, shardings
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import KVCache, init_cache


class BlockIndex:
  """Which block of tokens lies in which slot; least recently used go first."""

  def __init__(self, slots: int, block: int):
    self._block = block
    self._slot_of: collections.OrderedDict[bytes, int] = (
      collections.OrderedDict()
    )
    self._free = list(range(slots))

  def keys(self, prompt: Sequence[int]) -> list[bytes]:
    """A key for each whole block that is read: all but the last token is."""
    tokens = np.asarray(prompt[:-1], np.int32)
    digest, keys = hashlib.blake2b(digest_size=16), []
    for end in range(self._block, len(tokens) + 1, self._block):
      digest.update(tokens[end - self._block : end].tobytes())
      keys.append(digest.digest())
    return keys

  def match(self, keys: Sequence[bytes]) -> list[int]:
    """Slots of the leading blocks that are there."""
    there = list(itertools.takewhile(self._slot_of.__contains__, keys))
    self._use(there)
    return [self._slot_of[key] for key in there]

  def add(self, keys: Sequence[bytes], number: int) -> int | None:
    """The slot to put one of a prompt's blocks into.

    None if it is there already, or has no place: all are taken by the blocks
    before it, or one of those is gone.
    """
    key, before = keys[number], keys[:number]
    if key in self._slot_of or not all(k in self._slot_of for k in before):
      return None
    if not self._free:
      oldest = next(iter(self._slot_of))
      if oldest in before:
        return None
      self._free.append(self._slot_of.pop(oldest))
    self._slot_of[key] = slot = self._free.pop()
    self._use(keys[: number + 1])
    return slot

  def _use(self, keys: Sequence[bytes]) -> None:
    """The first one last: without it the others are of no use."""
    for key in reversed(keys):
      self._slot_of.move_to_end(key)

  def __len__(self) -> int:
    """Blocks that are kept."""
    return len(self._slot_of)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool:
  """Kept blocks: caches whose requests are blocks, of a block's rows each."""

  target: KVCache
  draft: DraftCache


class PrefixCache:
  """The blocks of one engine. Its state is given to it, and handed back."""

  def __init__(self, target: Target, drafter: Drafter, slots: int, block: int):
    """Allocates all blocks at once.

    Raises:
      InputError: they cannot be split over the target's mesh.
    """
    self.block, self._slots = block, slots
    self.index = BlockIndex(slots, block)
    dtype = target.params.embed_VD.dtype
    make = functools.partial(_new_pool, target.cfg, drafter, slots, block)
    where = target.mesh
    if where is not None:
      where = shardings(jax.eval_shape(lambda: make(dtype)), where)
    self._pool = jax.jit(lambda: make(dtype), out_shardings=where)()

  def restore(
    self, state: DecodeState, row: int, keys: Sequence[bytes]
  ) -> tuple[DecodeState, int]:
    """Gives a request the rows of its prefix that are kept, and counts them.

    The state is donated.
    """
    slots = self.index.match(keys)
    if slots:
      state = self._restore(state, row, slots)
    return state, len(slots) * self.block

  def keep(
    self, state: DecodeState, row: int, keys: Sequence[bytes], number: int
  ) -> None:
    """Keeps a block that has been read into both caches, if it is to be."""
    slot = self.index.add(keys, number)
    if slot is not None:
      self._keep(state, row, number * self.block, slot)

  def warm_up(self, state: DecodeState) -> DecodeState:
    """Compiles both programs; row 0 of the state has no request."""
    self._keep(state, 0, 0, self._slots)  # past the end: dropped
    return self._restore(state, 0, [])

  def _keep(self, state, row, start, slot):
    at = np.array([row, start, slot], np.int32)
    caches = state.target_cache, state.draft_cache
    self._pool = _keep(self._pool, *caches, at)

  def _restore(self, state, row, slots):
    padded = np.zeros(state.tokens_BT.shape[1] // self.block, np.int32)
    padded[: len(slots)] = slots
    rows = np.int32(len(slots) * self.block)
    return _restore(state, self._pool, np.int32(row), padded, rows)


def _new_pool(
  cfg: TargetConfig, drafter: Drafter, slots: int, block: int, dtype
) -> Pool:
  return Pool(
    init_cache(cfg, slots, block, dtype),
    drafter.init_cache(drafter.cfg, slots, block, dtype),
  )


@functools.partial(jax.jit, donate_argnames=('pool',))
def _keep(
  pool: Pool, target: KVCache, draft: DraftCache, at: jax.Array
) -> Pool:
  row, start, slot = at

  def put(kept_BGTC, of_BGTC):
    _, G, block, C = kept_BGTC.shape
    rows = lax.dynamic_slice(of_BGTC, (row, 0, start, 0), (1, G, block, C))
    return kept_BGTC.at[slot].set(rows[0], mode='drop')

  return constrain(
    Pool(_rows(put, pool.target, target), _rows(put, pool.draft, draft))
  )


@functools.partial(jax.jit, donate_argnames=('state',))
def _restore(
  state: DecodeState,
  pool: Pool,
  row: jax.Array,
  slots: jax.Array,
  count: jax.Array,
) -> DecodeState:
  """All slots are copied, in one go; rows from `count` on are not valid."""

  def put(to_BGTC, kept_BGTC):
    _, G, block, C = kept_BGTC.shape
    rows = jnp.swapaxes(kept_BGTC[slots], 0, 1)
    rows = rows.reshape(1, G, len(slots) * block, C)
    return lax.dynamic_update_slice(to_BGTC, rows, (row, 0, 0, 0))

  def restored(cache, kept):
    length_B = cache.length_B.at[row].set(count)
    return dataclasses.replace(_rows(put, cache, kept), length_B=length_B)

  return constrain(
    dataclasses.replace(
      state,
      target_cache=restored(state.target_cache, pool.target),
      draft_cache=restored(state.draft_cache, pool.draft),
    )
  )


def _rows(put, cache: KVCache, other: KVCache) -> KVCache:
  """Maps the arrays of rows, and leaves the lengths of `cache`."""
  return dataclasses.replace(
    cache,
    k=jax.tree.map(put, cache.k, other.k),
    v=jax.tree.map(put, cache.v, other.v),
  )
