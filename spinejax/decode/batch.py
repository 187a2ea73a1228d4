"""The device's side of the engine: the states, and the programs on them.

Two batches of one capacity: `slots` requests that are decoded, and `readers`
whose prompts are being read. Each method is one compiled program of
`decode.loop` (or of the prefix cache), so `warm_up` compiles all there are.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from spinejax.decode import loop
from spinejax.decode import round as rounds
from spinejax.decode.prefix_cache import PrefixCache
from spinejax.decode.request import check_ids, whole
from spinejax.decode.schedule import PLAIN
from spinejax.decode.state import DecodeState
from spinejax.decode.ticket import Request
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.sharding import DATA, shard
from spinejax.target.loading import Target
from spinejax.target.memory import check_memory
from spinejax.verify.sampling import Sampling

UNLIMITED = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True)
class Settings:
  """Sizes that programs are compiled for, and how turns are taken.

  Attributes:
    slots: requests decoded at once.
    capacity: rows of the caches: prompt, answer and a block of each request.
    readers: prompts read at once.
    chunks: sizes of the pieces that prompts are read in, ascending. A prompt
      is cut into pieces of the last size, and one that holds the rest.
    widths: fewer rows than `slots` that rounds are compiled for, ascending; a
      turn takes the first that reaches to the last busy slot.
    rounds: rounds in a turn at most, fewer where an eighth of the requests has
      ended, and one while a prompt is being read or a request has no token yet;
      None: until as many slots are free as there are readers, and answers are
      handed out whole, which suits data that nobody waits for.
    prefix_blocks: blocks (pieces of the last size) that the prefix cache
      keeps.
    queue: requests that may wait.
  """

  slots: int = 8
  capacity: int = 1024
  readers: int = 1
  chunks: tuple[int, ...] = (32, 128)
  widths: tuple[int, ...] = ()
  rounds: int | None = 8
  prefix_blocks: int = 0
  queue: int = 256

  def __post_init__(self):
    for field in ('slots', 'capacity', 'readers', 'queue'):
      whole(field, getattr(self, field), 1, UNLIMITED)
    whole('prefix_blocks', self.prefix_blocks, 0, UNLIMITED)
    if self.rounds is not None:
      whole('rounds', self.rounds, 1, UNLIMITED)
    for field, most in (('chunks', self.capacity), ('widths', self.slots - 1)):
      sizes = getattr(self, field)
      for size in sizes:
        whole(field, size, 1, most)
      if list(sizes) != sorted(set(sizes)):
        raise InputError(f'{field} = {sizes}, expected ascending sizes')
    if not self.chunks:
      raise InputError('chunks is empty, expected at least one size')


@dataclasses.dataclass(frozen=True)
class News:
  """What the host sees after a turn, by slot.

  Attributes:
    tokens_BT: tokens from where the host had seen them.
    length_B, done_B, rounds_B, accepted_hist_BK: as in `DecodeState`.
    counts_BS: `DecodeState.judged_BS` and `passed_BS`, in this order, where
      what was verified is chosen; None after rounds that leave them alone.
  """

  tokens_BT: np.ndarray
  length_B: np.ndarray
  done_B: np.ndarray
  rounds_B: np.ndarray
  accepted_hist_BK: np.ndarray
  counts_BS: np.ndarray | None


class Batch:
  """The requests on the device."""

  def __init__(
    self,
    target: Target,
    draft: DraftModel,
    settings: Settings,
    stop_ids: Sequence[int],
    step: Callable[..., rounds.Round],
    extra: object,
  ):
    """Allocates all memory; see `Engine`."""
    check(target, draft, settings)
    check_ids(target, 'stop_ids', stop_ids)
    self._settings, self._mesh = settings, target.mesh
    self._static = target.cfg, draft.drafter
    self._params = rounds.Params(
      target.params, draft.params, shard(extra, target.mesh)
    )
    self._step = step
    self._stop_ids = np.array(list(stop_ids), np.int32)
    self._state = self._empty(settings.slots)
    self._reading = self._empty(settings.readers)
    self.prefixes = None
    if settings.prefix_blocks:
      self.prefixes = PrefixCache(
        target, draft.drafter, settings.prefix_blocks, settings.chunks[-1]
      )
    self._law = np.zeros((3, settings.slots))
    self._law[2] = 1
    self._samplings: dict[int, Sampling] = {}  # by width, of the present law

  def warm_up(
    self, sampled: bool, ways: Mapping[int, Iterable[Mapping]] | None = None
  ) -> None:
    """Compiles all programs; see `Engine.warm_up`. Changes no request.

    Args:
      ways: by width, how rounds run; by default without further arguments.
    """
    readers, slots = self._settings.readers, self._settings.slots
    self.begin({})
    for chunk in self._settings.chunks:
      self.read(chunk, np.zeros(readers, np.int32))
    self.seat({})
    if self.prefixes is not None:
      self._reading = self.prefixes.warm_up(self._reading)
    self.halt([])
    for temperature in (0.0, 1.0) if sampled else (0.0,):
      for width in (*self._settings.widths, slots):
        self.law(0, temperature, 0, 1.0)
        for how in ({},) if ways is None else ways[width]:
          self.rounds(width, 0, width, np.zeros(slots, np.int32), how)
    self.law(0, 0.0, 0, 1.0)

  def begin(self, requests: dict[int, Request]) -> None:
    """Gives readers requests of which nothing is read yet."""
    chosen_B = np.isin(np.arange(self._settings.readers), list(requests))
    arrays = self._arrays(self._settings.readers, requests)
    arrays = shard({'chosen_B': chosen_B, **arrays}, self._mesh)
    self._reading = loop.begin_requests(*self._static, self._reading, **arrays)

  def restore(self, reader: int, keys: Sequence[bytes]) -> int:
    """Takes from the prefix cache what is there, and counts its tokens."""
    self._reading, count = self.prefixes.restore(self._reading, reader, keys)
    return count

  def keep(self, reader: int, keys: Sequence[bytes], number: int) -> None:
    """Puts a block that has been read into the prefix cache."""
    self.prefixes.keep(self._reading, reader, keys, number)

  def read(self, chunk: int, count_B: np.ndarray) -> None:
    """Reads so many more tokens of each reader's prompt, `chunk` at most."""
    self._reading = loop.prefill_chunk(
      *self._static, self._params, self._reading, chunk, count_B
    )

  def seat(self, seats: dict[int, int]) -> None:
    """Copies requests from readers into slots."""
    into = np.full(self._settings.readers, self._settings.slots, np.int32)
    for reader, slot in seats.items():
      into[reader] = slot  # the others are past the end: dropped
    self._state = loop.put_requests(self._state, self._reading, into)

  def halt(self, slots: Sequence[int]) -> None:
    """Ends requests where they are."""
    ended_B = np.isin(np.arange(self._settings.slots), slots)
    self._state = loop.end_requests(self._state, ended_B)

  def law(
    self, slot: int, temperature: float, top_k: int, top_p: float
  ) -> None:
    """Sets how a slot samples."""
    new = temperature, top_k, top_p
    if tuple(self._law[:, slot]) != new:
      self._law[:, slot] = new
      self._samplings.clear()

  def greedy(self, width: int) -> bool:
    """Whether none of the first `width` slots samples."""
    return not self._law[0, :width].any()

  def rounds(
    self,
    width: int,
    most: int,
    enough: int,
    seen_B: np.ndarray,
    how: Mapping | None = None,
  ) -> News:
    """Runs rounds of the first `width` slots.

    Args:
      most: rounds at most.
      enough: done requests among those slots at which to stop.
      seen_B: lengths that the host knows.
      how: budget or schedule, of which there is a choice; see
        `loop.run_rounds`. None: there is none.
    """
    if width not in self._samplings:
      temperature_B, top_k_B, top_p_B = self._law[:, :width]
      sampling = Sampling(
        temperature_B.astype(np.float32), top_k_B.astype(np.int32),
        top_p_B.astype(np.float32), greedy=self.greedy(width),
      )  # fmt: skip
      self._samplings[width] = shard(sampling, self._mesh)
    self._state = state = loop.run_rounds(
      *self._static, self._params, self._state, self._samplings[width],
      np.int32(most), np.int32(enough), step=self._step,
      rows=None if width == self._settings.slots else width, **(how or {}),
    )  # fmt: skip
    window = self._settings.capacity
    if self._settings.rounds is not None:
      block = self._static[1].slots + 1
      window = min(window, self._settings.rounds * block)
    counts = None
    if how is not None and how.get('budget') != PLAIN:
      counts = state.judged_BS, state.passed_BS
    *news, counts = jax.device_get((
      loop.tokens_from(state.tokens_BT, seen_B, window), state.length_B,
      state.done_B, state.rounds_B, state.accepted_hist_BK, counts,
    ))  # fmt: skip
    return News(*news, None if counts is None else np.stack(counts))

  def _empty(self, batch: int) -> DecodeState:
    """Requests that are done: of one token, and without an answer."""
    arrays = self._arrays(batch, {}) | {'stop_ids_E': self._stop_ids}
    dtype = self._params.target.embed_VD.dtype
    return loop.new_state(*self._static, dtype, **shard(arrays, self._mesh))

  def _arrays(self, batch: int, requests: dict[int, Request]):
    arrays = {
      'tokens_BT': np.zeros((batch, self._settings.capacity), np.int32),
      'prompt_length_B': np.ones(batch, np.int32),
      'cap_B': np.ones(batch, np.int32),
      'seed_B': np.zeros(batch, np.uint32),
      'stops_B': np.ones(batch, bool),
    }
    for i, request in requests.items():
      size = len(request.prompt)
      arrays['tokens_BT'][i, :size] = request.prompt
      arrays['prompt_length_B'][i] = size
      arrays['cap_B'][i] = size + request.max_new_tokens
      arrays['seed_B'][i] = request.seed
      arrays['stops_B'][i] = not request.ignore_eos
    return arrays


def check(target: Target, draft: DraftModel, settings: Settings) -> None:
  """Refuses sizes that cannot be run.

  Raises:
    InputError: the drafter was made for another target, the mesh cannot split
      the sizes, or the caches do not fit.
  """
  draft.check(target)
  parts = 1 if target.mesh is None else target.mesh.shape[DATA]
  for field in ('slots', 'readers', 'prefix_blocks'):
    size = getattr(settings, field)
    if size % parts:
      raise InputError(
        f'{size} {field} cannot be split evenly over the mesh axis '
        f'{DATA}={parts}'
      )
  if settings.widths and parts > 1:
    raise InputError(
      f'widths = {settings.widths}, expected none on a mesh of {DATA}={parts}'
    )
  capacity = settings.capacity
  kept = -(-settings.prefix_blocks * settings.chunks[-1] // capacity)
  copied = max(settings.widths, default=0)
  batch = settings.slots + settings.readers + kept + copied
  check_memory(target, draft, batch, capacity)
