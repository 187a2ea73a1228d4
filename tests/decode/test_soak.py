"""Thousands of short requests of every kind through a small engine: none is
lost or mixed up, nothing is compiled on the way, and memory stays flat."""

import os
import pathlib

import jax
import numpy as np
import pytest

from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.scheduler import Scheduling
from spinejax.decode.ticket import Overloaded, Request, Ticket
from spinejax.drafters.loading import ngram_model
from spinejax.errors import InputError
from tests.compilations import COMPILATIONS
from tests.decode import toy

KINDS, NEW = 40, 8
SETTINGS = Settings(
  slots=16, capacity=64, readers=8, chunks=(8, 16), rounds=3, prefix_blocks=8,
  queue=24,
)  # fmt: skip
BAD = (
  dict(prompt=[]), dict(prompt=[toy.V]), dict(prompt=None), dict(seed=-1),
  dict(prompt=[1] * 60), dict(max_new_tokens=0), dict(top_k=-1),
  dict(temperature=float('nan')), dict(top_p=0.0), dict(timeout_s=-1.0),
)  # fmt: skip


def kinds() -> list[dict]:
  """Requests that differ; some begin alike."""
  rng = np.random.default_rng(0)
  common = toy.prompts(40, seed=5)[0]
  found = []
  for i in range(KINDS):
    prompt = toy.prompts(int(rng.integers(1, 40)), seed=i)[0]
    if i % 2:
      prompt[:-1] = common[: len(prompt) - 1]
    law = dict(temperature=0.9, top_k=i % 4 * 5) if i % 3 else {}
    found.append(dict(prompt=prompt, seed=i, ignore_eos=i % 5 == 0, **law))
  return found


def resident() -> int:
  """Bytes of this process."""
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE')


@pytest.mark.parametrize(
  'count, scheduling', ((5000, None), (1000, Scheduling(reproducible=True)))
)
def test_soak(count, scheduling):
  now = 0.0
  engine = Engine(
    toy.target(), ngram_model(3), SETTINGS, stop_ids=(5, 23),
    scheduling=scheduling, clock=lambda: now,
  )  # fmt: skip
  engine.warm_up()
  of_kind, alone = kinds(), []
  for kind in of_kind:
    ticket = engine.submit(Request(max_new_tokens=NEW, **kind))
    engine.run()
    alone.append((ticket.tokens, ticket.finish))
  assert any({5, 23} & set(tokens[:-1]) for tokens, _ in alone)  # ignored
  compiled, before = len(COMPILATIONS), engine.counters.finished.total()
  rng = np.random.default_rng(1)
  ended, wrong, refused, overloaded, marks = [], [], 0, 0, []
  known: dict[Ticket, tuple[int, int]] = {}  # those on their way

  def on_tokens(ticket, new):
    if ticket.finish is None:
      return
    kind, cap = known.pop(ticket)
    ended.append(ticket.finish)
    answer, finish = alone[kind]
    if ticket.finish in ('stop', 'length'):
      cut = cap < len(answer) or finish == 'length'
      expected = answer[:cap], 'length' if cut else 'stop'
    else:
      expected = answer[: len(ticket.tokens)], ticket.finish
    if (ticket.tokens, ticket.finish) != expected:
      wrong.append(ticket)

  asked = 0
  while asked < count:
    for _ in range(rng.integers(0, 25)):
      draw = rng.random()
      if draw < 0.05:
        bad = BAD[rng.integers(len(BAD))]
        try:
          engine.submit(Request(**dict(prompt=[1], max_new_tokens=4) | bad))
        except InputError:
          refused += 1
        asked += 1
        continue
      kind, cap = int(rng.integers(KINDS)), int(rng.integers(1, NEW + 1))
      if scheduling is not None and asked // 100 % 2:
        kind -= kind % 3  # for a while all are greedy, and rounds are chosen
      late = {} if draw < 0.8 else dict(timeout_s=float(rng.integers(1, 9)))
      request = Request(max_new_tokens=cap, **of_kind[kind], **late)
      try:
        ticket = engine.submit(request, on_tokens)
      except Overloaded:
        overloaded += 1
        continue
      known[ticket] = kind, cap
      asked += 1
      if draw > 0.9:
        list(known)[rng.integers(len(known))].cancel()
    engine.step()
    now += 1.0
    if asked // (count // 5) > len(marks):
      marks.append((resident(), len(jax.live_arrays())))
  engine.run()
  assert not known and not wrong
  assert len(ended) + refused == asked
  assert engine.counters.finished.total() - before == len(ended)
  counts = {how: ended.count(how) for how in set(ended)}
  assert min(counts[how] for how in ('stop', 'length')) > 0.04 * count
  assert min(counts[how] for how in ('cancelled', 'timeout')) > 0.02 * count
  assert min(refused, overloaded) > 0.02 * count
  assert engine.counters.cached_tokens > 2 * count
  if scheduling is not None:
    kinds_of_rounds = engine.counters.rounds
    assert min(kinds_of_rounds[kind] for kind in ('plain', 'padded')) > 99
  assert len(COMPILATIONS) == compiled
  (first, arrays), *_, (last, arrays_then) = marks
  assert arrays == arrays_then
  assert last - first < 2**24
