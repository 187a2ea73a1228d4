"""Many prompts through a fixed number of slots, for throughput.

`generate` waits for the longest answer of its batch. Here a slot whose answer
has ended takes the next prompt, so that nearly all rows of a step are of use,
and one set of compiled programs serves any number of prompts. The host hands
out prompts and collects tokens, a group of slots at a time.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.decode.loop import (
  capacity_bucket,
  new_state,
  prefill_chunk,
  put_requests,
  run_rounds,
)
from spinejax.decode.request import check_context, check_ids, whole
from spinejax.decode.round import Params
from spinejax.decode.state import DecodeState
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.sharding import DATA, shard
from spinejax.target.loading import Target
from spinejax.target.memory import check_memory
from spinejax.verify.sampling import Sampling

_UNTIL_DONE = np.iinfo(np.int32).max
# Slots are refilled an eighth at a time: on average a sixteenth stands idle.
_GROUPS = 8
# Prompts are short and sorted: smaller steps than for one batch of any.
_CHUNK = 64


def check_slots(target: Target, slots: int, capacity: int) -> None:
  """Refuses a number of slots that cannot be run.

  Raises:
    InputError: it is not positive, cannot be split over the target's mesh, or
      the caches do not fit.
  """
  whole('slots', slots, 1, _UNTIL_DONE)
  if slots % _parts(target):
    raise InputError(
      f'{slots} slots cannot be split evenly over the mesh axis '
      f'{DATA}={_parts(target)}'
    )
  check_memory(target, plain_model(), slots + _group(target, slots), capacity)


def complete(
  target: Target,
  prompts: Sequence[Sequence[int]],
  *,
  ends: Sequence[int],
  seeds: Sequence[int],
  slots: int,
  temperature: float = 0.0,
  top_k: int = 0,
  capacity: int | None = None,
) -> list[np.ndarray]:
  """What the target says after each prompt, by plain decoding.

  An answer depends neither on the other prompts nor on their order, as far as
  the products of the device do not depend on a row's place in a batch.

  Args:
    prompts: token ids, at least one each.
    ends: for each, the length of prompt and answer at which it is cut.
    seeds: for each, what it draws from; unused where the temperature is 0.
    slots: prompts answered at a time.
    temperature, top_k: of all; see `Sampling`.
    capacity: rows of the caches; by default the bucket that fits.

  Returns:
    The emitted ids of each prompt, int32, the stop token included.

  Raises:
    InputError: a prompt is empty or has no room for an answer, or see
      `check_slots`.
  """
  longest = max(ends, default=1)
  for i, (prompt, end) in enumerate(zip(prompts, ends, strict=True)):
    if not 0 < len(prompt) < end:
      raise InputError(
        f'prompt {i} has {len(prompt)} tokens, expected 1..{end - 1}'
      )
    check_context(target, i, len(prompt), end - len(prompt))
  if capacity is None:
    capacity = capacity_bucket(longest + 1)
  whole('capacity', capacity, longest + 1, _UNTIL_DONE)
  check_slots(target, slots, capacity)
  check_ids(target, 'stop_ids', target.tokenizer.stop_ids)
  sampling = Sampling.make(slots, temperature, top_k)
  sampling = shard(sampling, target.mesh)
  run = _Run(target, prompts, ends, seeds, slots, capacity)
  return run.all(sampling)


def _parts(target: Target) -> int:
  return 1 if target.mesh is None else target.mesh.shape[DATA]


def _group(target: Target, slots: int) -> int:
  """Slots that are filled at a time: a share that the mesh can split."""
  parts = _parts(target)
  return max(slots // _GROUPS // parts, 1) * parts


class _Run:
  """The host's side: which prompt is in which slot."""

  def __init__(self, target, prompts, ends, seeds, slots, capacity):
    self._target, self._draft = target, plain_model().drafter
    self._params = Params(target.params, None)
    self._prompts, self._ends, self._seeds = prompts, ends, seeds
    self._slots, self._capacity = slots, capacity
    self._group = _group(target, slots)
    # Prompts of one group are read in as many steps as the longest needs. The
    # longest have the least room for answers, so that the end comes soon.
    self._queue = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    self._queue.reverse()  # taken from the end

  def all(self, sampling: Sampling) -> list[np.ndarray]:
    answers: list[np.ndarray] = [np.zeros((0,), np.int32)] * len(self._prompts)
    # Prompts of one token that may not be answered: every slot is done.
    B = self._slots
    owner_B = np.full(B, -1)  # the prompt in each slot
    state = self._state([[0]] * B, [1] * B, [0] * B)
    while True:
      free = np.flatnonzero(owner_B < 0)
      while self._queue and len(free) >= min(self._group, len(self._queue)):
        count = min(self._group, len(self._queue))
        chosen = [self._queue.pop() for _ in range(count)]
        taken, free = free[:count], free[count:]
        owner_B[taken] = chosen
        state = self._fill(state, taken, chosen)
      if len(free) == B:
        return answers
      wanted = self._group if self._queue else B
      state = run_rounds(
        self._target.cfg, self._draft, self._params, state, sampling,
        jnp.int32(_UNTIL_DONE), jnp.int32(wanted),
      )  # fmt: skip
      done_B, length_B = jax.device_get((state.done_B, state.length_B))
      ended = np.flatnonzero(done_B & (owner_B >= 0))
      for some in np.split(ended, range(self._group, len(ended), self._group)):
        rows = np.zeros(self._group, np.int32)
        rows[: len(some)] = some
        tokens_GT = np.asarray(_take(state.tokens_BT, rows))
        for row, slot in zip(tokens_GT, some, strict=False):
          i = owner_B[slot]
          answers[i] = row[len(self._prompts[i]) : length_B[slot]].copy()
      owner_B[ended] = -1

  def _fill(self, state: DecodeState, slots, chosen: list[int]) -> DecodeState:
    """Reads prompts and puts them into free slots."""
    missing = self._group - len(chosen)
    prompts = [self._prompts[i] for i in chosen]
    new = self._state(
      prompts + [[0]] * missing,
      [self._ends[i] for i in chosen] + [1] * missing,
      [self._seeds[i] for i in chosen] + [0] * missing,
    )
    for _ in range(-(-(max(map(len, prompts)) - 1) // _CHUNK)):
      new = prefill_chunk(
        self._target.cfg, self._draft, self._params, new, _CHUNK
      )
    into = np.full(self._group, self._slots, np.int32)  # past the end: dropped
    into[: len(chosen)] = slots
    return put_requests(state, new, into)

  def _state(self, prompts, ends, seeds) -> DecodeState:
    tokens_BT = np.zeros((len(prompts), self._capacity), np.int32)
    for row, prompt in zip(tokens_BT, prompts, strict=True):
      row[: len(prompt)] = prompt
    arrays = {
      'tokens_BT': tokens_BT,
      'prompt_length_B': np.array([len(p) for p in prompts], np.int32),
      'cap_B': np.array(ends, np.int32),
      'seed_B': np.array(seeds, np.uint32),
      'stop_ids_E': np.array(list(self._target.tokenizer.stop_ids), np.int32),
    }
    return new_state(
      self._target.cfg,
      self._draft,
      self._target.params.embed_VD.dtype,
      **shard(arrays, self._target.mesh),
    )


@jax.jit
def _take(tokens_BT: jax.Array, rows: jax.Array) -> jax.Array:
  return tokens_BT[rows]
