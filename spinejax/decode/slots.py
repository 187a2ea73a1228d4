"""Many prompts through a fixed number of slots, for throughput.

`generate` waits for the longest answer of its batch. Here a slot whose answer
has ended takes the next prompt, so that nearly all rows of a step are of use,
and one set of compiled programs serves any number of prompts. It is the
engine, told to look at its batch only when a group of slots is free.
"""

from collections.abc import Sequence

import numpy as np

from spinejax.decode.batch import UNLIMITED, Settings, check
from spinejax.decode.engine import Engine
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.request import check_context, whole
from spinejax.decode.ticket import Request
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.sharding import DATA
from spinejax.target.loading import Target
from spinejax.verify.sampling import check_sampling

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
  check(target, plain_model(), _settings(target, slots, capacity))


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
  whole('capacity', capacity, longest + 1, UNLIMITED)
  settings = _settings(target, slots, capacity)
  check_sampling(temperature, top_k, 1.0)
  engine = Engine(target, plain_model(), settings)
  # Prompts of one group are read in as many steps as the longest needs. The
  # longest have the least room for answers, so that the end comes soon.
  order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
  tickets = {
    i: engine.submit(
      Request(
        prompts[i], int(ends[i]) - len(prompts[i]), temperature, top_k,
        seed=int(seeds[i]),
      )
    )
    for i in order
  }  # fmt: skip
  engine.run()
  return [np.array(tickets[i].tokens, np.int32) for i in range(len(prompts))]


def _settings(target: Target, slots: int, capacity: int) -> Settings:
  """Prompts are read by a group at a time: a share that the mesh can split."""
  parts = 1 if target.mesh is None else target.mesh.shape[DATA]
  whole('slots', slots, 1, UNLIMITED)
  group = max(slots // _GROUPS // parts, 1) * parts
  return Settings(
    slots, capacity, readers=group, chunks=(min(_CHUNK, capacity),),
    rounds=None, queue=UNLIMITED,
  )  # fmt: skip
