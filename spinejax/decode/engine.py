"""Continuous batching: requests come and go, the compiled programs stay.

A request waits in a bounded queue, is read chunk by chunk in one of a few
rows beside the batch (so a long prompt holds up nobody for longer than a
chunk), and is then put into a slot of the batch, where rounds run on the
device. The host looks at the batch every few rounds: hands out tokens, ends
what has to end, and fills free slots. `Engine.step` is one such turn; nothing
runs by itself.

In float32 an answer depends on its request alone: not on its neighbours, its
slot, the time it came, or what the prefix cache had. Prompts are cut into
chunks by their own length only, and every product has the same number of rows
each time. (With `widths` or scheduling it has not: those trade this for speed.)
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from spinejax.decode import round as rounds
from spinejax.decode.batch import UNLIMITED, Batch, Settings
from spinejax.decode.schedule import PLAIN
from spinejax.decode.scheduler import Scheduler, Scheduling
from spinejax.decode.ticket import Closed, Overloaded, Request, Ticket
from spinejax.drafters.base import DraftModel
from spinejax.target.loading import Target

# The host looks as soon as such a share of the busy slots has ended: each time
# costs as much as some rounds of a small model.
_GROUPS = 8


@dataclasses.dataclass
class Counters:
  """What an engine has done so far.

  `finished` by reason; `rounds` by what they did: 'padded', 'packed', 'plain'.
  """

  finished: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  rounds: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  refused: int = 0
  prompt_tokens: int = 0
  cached_tokens: int = 0
  emitted_tokens: int = 0
  turns: int = 0


@dataclasses.dataclass
class _Reading:
  """A prompt that is being read."""

  ticket: Ticket
  keys: list[bytes]
  read: int

  @property
  def left(self) -> int:
    """A prompt's last token is not read: it is the first anchor."""
    return len(self.ticket.request.prompt) - 1 - self.read


class Engine:
  """Answers requests.

  `step` and what calls it belong to one thread; all else, and `Ticket.cancel`,
  may be used from any.
  """

  def __init__(
    self,
    target: Target,
    draft: DraftModel,
    settings: Settings,
    *,
    stop_ids: Sequence[int] | None = None,
    step: Callable[..., rounds.Round] = rounds.step,
    extra: object = None,
    scheduling: Scheduling | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Allocates all memory; `warm_up` compiles.

    Args:
      target, draft: what to decode with.
      stop_ids: ids that end every answer; by default the tokenizer's.
      step: the round, a module-level function like `round.step`.
      extra: arrays that this function reads in `Params.extra`.
      scheduling: between turns, what pays best is chosen from this; None:
        everything is drafted and verified.
      clock: seconds, for timeouts and the times in tickets.

    Raises:
      InputError: the drafter was made for another target, the target's mesh
        cannot split the sizes, the caches do not fit, or see `Scheduler`.
    """
    if stop_ids is None:
      stop_ids = target.tokenizer.stop_ids
    self.scheduler = None
    if scheduling is not None:
      self.scheduler = Scheduler(scheduling, target, draft, settings)
    self._batch = Batch(target, draft, settings, stop_ids, step, extra)
    self._stop_ids, self._rows = list(stop_ids), draft.drafter.slots + 1
    self.target, self.draft, self.settings = target, draft, settings
    self.counters, self.clock = Counters(), clock
    self._queue: collections.deque[Ticket] = collections.deque()
    self._lock = threading.Condition()
    self._failed: Exception | None = None
    self._readers: list[_Reading | None] = [None] * settings.readers
    self._slots: list[Ticket | None] = [None] * settings.slots
    self._seen_B = np.zeros(settings.slots, np.int32)

  def warm_up(self, sampled: bool = True) -> None:
    """Compiles every program that requests may need, before the first.

    With scheduling it measures what they cost, too.

    Args:
      sampled: also those for temperatures above 0.
    """
    if self.scheduler is None:
      self._batch.warm_up(sampled)
      return
    ways = self.scheduler.ways.items()
    self._batch.warm_up(sampled, {n: each.values() for n, each in ways})
    self.scheduler.measure(self._batch, sampled)

  def submit(
    self,
    request: Request,
    on_tokens: Callable[[Ticket, np.ndarray], None] | None = None,
  ) -> Ticket:
    """Queues a request.

    Args:
      on_tokens: see `Ticket`; called by the thread that calls `step`.

    Raises:
      InputError: the request cannot be answered.
      Overloaded: the queue is full.
      Closed: all requests were ended by `fail`, and so would this one be.
    """
    request.check(self.target, self.settings.capacity, self._rows)
    ticket = Ticket(request, on_tokens, self.clock())
    with self._lock:
      if self._failed is not None:
        raise Closed(f'the engine has ended: {self._failed}')
      if len(self._queue) >= self.settings.queue:
        self.counters.refused += 1
        raise Overloaded(
          f'{len(self._queue)} requests wait already, which is all that may; '
          'try again later'
        )
      self._queue.append(ticket)
      self._lock.notify()
    return ticket

  def room(self, prompt_tokens: int) -> int:
    """Tokens that an answer to such a prompt can have; below 1: none."""
    most = min(
      self.settings.capacity - self._rows, self.target.cfg.max_position
    )
    return most - prompt_tokens

  @property
  def waiting(self) -> int:
    """Requests that are not in a slot yet."""
    return len(self._queue) + sum(r is not None for r in self._readers)

  @property
  def running(self) -> int:
    """Requests in slots."""
    return sum(ticket is not None for ticket in self._slots)

  def wait(self, seconds: float) -> None:
    """Returns when there is something to do, or after so many seconds."""
    with self._lock:
      self._lock.wait_for(lambda: self.waiting or self.running, seconds)

  def run(self) -> None:
    """Turns until nothing is left to do."""
    while self.step():
      pass

  def step(self) -> bool:
    """One turn: ends, admits, reads a chunk, runs rounds, hands out tokens.

    Returns:
      Whether anything is left to do.
    """
    self.counters.turns += 1
    self._end()
    self._fill()
    if self.settings.rounds is None:  # nobody waits: first, no slot is idle
      while self.waiting and self.running < len(self._slots):
        self._fill()
    if self.running:
      self._run()
    return bool(self.waiting or self.running)

  def fail(self, error: Exception) -> None:
    """Ends all requests as failed, and takes no more: the device has gone
    wrong, or nobody will turn the engine."""
    with self._lock:
      self._failed = error
      tickets = [*self._slots, *(r and r.ticket for r in self._readers)]
      tickets += self._queue
      self._queue.clear()
    self._slots = [None] * len(self._slots)
    self._readers = [None] * len(self._readers)
    for ticket in filter(None, tickets):
      ticket.error = error
      self._deliver(ticket, finish='failed')

  def _end(self) -> None:
    """Ends what was cancelled or has run out of time."""
    now, ended = self.clock(), []
    with self._lock:
      late = [ticket for ticket in self._queue if ticket.ending(now)]
      for ticket in late:
        self._queue.remove(ticket)
    for i, reading in enumerate(self._readers):
      if reading is not None and reading.ticket.ending(now):
        late.append(reading.ticket)
        self._readers[i] = None
    for slot, ticket in enumerate(self._slots):
      if ticket is not None and ticket.ending(now):
        late.append(ticket)
        ended.append(slot)
    if ended:
      self._batch.halt(ended)
      self._free(ended)
    for ticket in late:
      self._deliver(ticket, finish=ticket.ending(now))

  def _fill(self) -> None:
    """Brings requests from the queue to readers, and from there to slots."""
    self._admit()
    self._read()
    self._seat()

  def _admit(self) -> None:
    """Takes requests from the queue where a reader is free."""
    if self.settings.rounds is None and any(self._readers):
      return  # later, as many at once as can be
    free = [i for i, reading in enumerate(self._readers) if reading is None]
    with self._lock:
      count = min(len(free), len(self._queue))
      begun = {i: self._queue.popleft() for i in free[:count]}
    if not begun:
      return
    self._batch.begin({i: ticket.request for i, ticket in begun.items()})
    for i, ticket in begun.items():
      prompt, keys = ticket.request.prompt, []
      if self._batch.prefixes is not None:
        keys = self._batch.prefixes.index.keys(prompt)
        ticket.cached = self._batch.restore(i, keys)
      self.counters.prompt_tokens += len(prompt)
      self.counters.cached_tokens += ticket.cached
      self._readers[i] = _Reading(ticket, keys, ticket.cached)

  def _read(self) -> None:
    """Reads a chunk of prompts; all of them where nobody waits for tokens."""
    block = self.settings.chunks[-1]
    while some := [r for r in self._readers if r is not None and r.left]:
      # That of the prompt that came first: none waits forever.
      chunk = self._chunk(min(some, key=lambda r: r.ticket.submitted))
      count_B = np.zeros(len(self._readers), np.int32)
      for i, reading in enumerate(self._readers):
        # One whose next piece has another size waits for it.
        if reading in some and self._chunk(reading) == chunk:
          count_B[i] = min(chunk, reading.left)
      self._batch.read(chunk, count_B)
      for i in np.flatnonzero(count_B):
        reading = self._readers[i]
        if self._batch.prefixes is not None and count_B[i] == block:
          self._batch.keep(i, reading.keys, reading.read // block)
        reading.read += int(count_B[i])
      if self.settings.rounds is not None:
        break

  def _chunk(self, reading: _Reading) -> int:
    """The size of the next piece: it depends on the prompt alone."""
    sizes = self.settings.chunks
    return next((size for size in sizes if size >= reading.left), sizes[-1])

  def _seat(self) -> None:
    """Puts prompts that have been read into the lowest free slots."""
    free = [slot for slot, ticket in enumerate(self._slots) if ticket is None]
    read = [
      i for i, reading in enumerate(self._readers)
      if reading is not None and not reading.left
    ]  # fmt: skip
    read.sort(key=lambda i: self._readers[i].ticket.submitted)
    seats = dict(zip(read, free, strict=False))
    if not seats:
      return
    self._batch.seat(seats)
    for i, slot in seats.items():
      ticket = self._slots[slot] = self._readers[i].ticket
      self._readers[i] = None
      asked = ticket.request
      self._seen_B[slot] = len(asked.prompt)
      self._batch.law(slot, asked.temperature, asked.top_k, asked.top_p)
      if self.scheduler is not None:
        self.scheduler.seat(slot)

  def _run(self) -> None:
    """Runs rounds, and hands out what they emitted."""
    busy = [slot for slot, t in enumerate(self._slots) if t is not None]
    widths = *self.settings.widths, self.settings.slots
    width = next(width for width in widths if width > busy[-1])
    # All rows but the busy ones are done.
    idle = width - len(busy)
    if self.settings.rounds is None:
      most = UNLIMITED
      wanted = min(self.settings.readers, self.waiting, len(busy)) or len(busy)
    else:
      reading = any(r is not None and r.left for r in self._readers)
      fresh = any(not self._slots[slot].tokens for slot in busy)
      most = 1 if reading or fresh else self.settings.rounds
      wanted = -(-len(busy) // _GROUPS)
    how, kind = None, 'padded'
    if self.scheduler is not None:
      greedy = self._batch.greedy(width)
      budget, some = self.scheduler.choose(width, len(busy), greedy)
      how, most = self.scheduler.ways[width][budget], min(most, some or most)
      if how:
        kind = 'plain' if budget == PLAIN else 'packed'
    enough = idle + wanted
    news = self._batch.rounds(width, most, enough, self._seen_B, how)
    # A round is run as long as somebody needs it.
    ran = max(int(news.rounds_B[s]) - self._slots[s].rounds for s in busy)
    self.counters.rounds[kind] += ran
    if self.scheduler is not None:
      self.scheduler.note(news, busy, ran)
    for slot in busy:
      ticket, done = self._slots[slot], bool(news.done_B[slot])
      ticket.rounds = int(news.rounds_B[slot])
      if self.settings.rounds is None and not done:
        continue  # nobody waits: answers are handed out whole
      new = news.tokens_BT[slot, : news.length_B[slot] - self._seen_B[slot]]
      self._seen_B[slot] = news.length_B[slot]
      ticket.accepted_hist = news.accepted_hist_BK[slot].copy()
      finish = None
      if done:
        stops = () if ticket.request.ignore_eos else self._stop_ids
        finish = 'stop' if len(new) and new[-1] in stops else 'length'
      stops = np.flatnonzero(np.isin(new, ticket.request.stop_ids))
      if len(stops):
        new, finish = new[: stops[0] + 1], 'stop'
        if not done:
          self._batch.halt([slot])
      if finish is not None:
        self._free([slot])
      self._deliver(ticket, new, finish)

  def _free(self, slots: list[int]) -> None:
    for slot in slots:
      self._slots[slot] = None
      self._batch.law(slot, 0.0, 0, 1.0)

  def _deliver(self, ticket: Ticket, new=(), finish: str | None = None) -> None:
    if finish is not None:
      self.counters.finished[finish] += 1
    self.counters.emitted_tokens += len(new)
    ticket.deliver(np.asarray(new, np.int32), self.clock(), finish)
