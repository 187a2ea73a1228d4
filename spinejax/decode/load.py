"""Load on an engine, and what its users would see of it.

Closed loop: so many clients, each of which asks again when it is answered.
Open loop: requests come when they come, whether or not others are answered.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spinejax.decode.engine import Engine
from spinejax.decode.request import whole
from spinejax.decode.ticket import Overloaded, Request, Ticket
from spinejax.errors import InputError

_QUANTILES = (50, 95, 99)


@dataclasses.dataclass(frozen=True)
class Load:
  """A load that was run.

  Attributes:
    tickets: those that were taken, in the order of the requests.
    asked: the clock when each of them was meant to be asked.
    refused: requests that found the queue full.
    began, ended: the clock between which tokens are counted: in a closed loop
      while all clients are being answered, from the last one's first token
      until one finds nothing more to ask (or from the first request on, if no
      token comes in between); in an open one from the start until all is
      answered.
  """

  tickets: list[Ticket]
  asked: list[float]
  refused: int
  began: float
  ended: float


def closed_loop(
  engine: Engine, requests: Sequence[Request], concurrency: int
) -> Load:
  """Clients that ask the next request when one of theirs is answered.

  Raises:
    InputError, Overloaded or what the engine failed of: not all requests could
      be asked, so there is nothing to tell of the load.
  """
  whole('concurrency', concurrency, 1, 2**31 - 1)
  if not requests:
    raise InputError('requests is empty, expected at least one')
  waiting, tickets = collections.deque(requests), []
  ended = []

  def ask() -> None:
    if waiting:
      tickets.append(engine.submit(waiting.popleft(), answered))
    else:
      ended.append(engine.clock())

  def answered(ticket: Ticket, new: np.ndarray) -> None:
    del new
    if ticket.finish is not None:
      ask()

  began = engine.clock()
  for _ in range(min(concurrency, len(requests))):
    ask()
  engine.run()
  for ticket in tickets:
    if ticket.error is not None:  # also of what it asked when it had ended
      raise ticket.error
  times = [[at for at, _ in ticket.deliveries] for ticket in tickets]
  full = max((each[0] for each in times[:concurrency] if each), default=began)
  if any(full < at <= ended[0] for each in times for at in each):
    began = full
  asked = [ticket.submitted for ticket in tickets]
  return Load(tickets, asked, 0, began, ended[0])


def open_loop(
  engine: Engine,
  requests: Sequence[Request],
  arrivals: Sequence[float],
  sleep: Callable[[float], None] = time.sleep,
) -> Load:
  """Requests that arrive so many seconds after the start, ascending."""
  tickets, asked, refused = [], [], 0
  came = collections.deque(zip(arrivals, requests, strict=True))
  began, busy = engine.clock(), False
  while came or busy:
    now = engine.clock() - began
    while came and came[0][0] <= now:
      at, request = came.popleft()
      try:
        tickets.append(engine.submit(request))
        # Not when the engine got to it: what it is late by is waiting, too.
        asked.append(began + at)
      except Overloaded:
        refused += 1
      busy = True
    if busy:
      busy = engine.step()
    elif came:
      sleep(came[0][0] - now)
  return Load(tickets, asked, refused, began, engine.clock())


def poisson(count: int, rate: float, seed: int) -> list[float]:
  """Arrivals of a Poisson process of `rate` requests a second."""
  gaps = np.random.default_rng(seed).exponential(1 / rate, count)
  return np.cumsum(gaps).tolist()


def measured(load: Load) -> dict[str, Any]:
  """Keys of a metric row.

  `tokens_per_s`: tokens that all clients got between `began` and `ended`.
  `request_tokens_per_s`: of an answer, from asking to its end; the median.
  `ttft_ms`: from asking to the first tokens. `token_ms`: between tokens; those
  that came together share the time since the last ones. `p50` and so on are
  over requests and over tokens.

  Raises:
    InputError: nobody was answered.
  """
  firsts, gaps, rates, within = [], [], [], 0
  for ticket, asked in zip(load.tickets, load.asked, strict=True):
    if not ticket.deliveries:
      continue
    times, counts = np.array(ticket.deliveries).T
    counted = (load.began < times) & (times <= load.ended)
    within += int(counts[counted].sum())
    firsts.append(times[0] - asked)
    gaps.append(np.repeat(np.diff(times) / counts[1:], counts[1:].astype(int)))
    rates.append(counts.sum() / (ticket.finished - asked))
  if not firsts:
    raise InputError(
      f'none of {len(load.tickets)} requests got a token, and {load.refused} '
      'were refused: there is nothing to measure'
    )
  row = {
    'requests': len(load.tickets),
    'refused': load.refused,
    'emitted': sum(len(t.tokens) for t in load.tickets),
    'seconds': load.ended - load.began,
    'tokens_per_s': within / (load.ended - load.began),
    'request_tokens_per_s': float(np.median(rates)),
  }
  for key, values in (('ttft_ms', firsts), ('token_ms', np.concatenate(gaps))):
    if len(values):
      found = 1e3 * np.percentile(values, _QUANTILES)
      row |= {
        f'{key}_p{q}': float(v) for q, v in zip(_QUANTILES, found, strict=True)
      }
  return row


def first_token_ms(engine: Engine, request: Request) -> tuple[float, Ticket]:
  """Time to the first tokens of a request that is alone, and its ticket,
  answered in full."""
  ticket = engine.submit(request)
  engine.run()
  return 1e3 * (ticket.deliveries[0][0] - ticket.submitted), ticket
