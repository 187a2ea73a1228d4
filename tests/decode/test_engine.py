"""The engine: answers are those of a request alone, whatever goes on around
it; and what ends a request ends it for itself only."""

import itertools

import jax
import numpy as np
import pytest

from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.ticket import Overloaded, Request
from spinejax.drafters.loading import ngram_model
from tests.compilations import COMPILATIONS
from tests.decode import toy

SETTINGS = Settings(
  slots=3, capacity=256, readers=2, chunks=(16, 64), rounds=3, queue=40
)
NEW = 20
DRAFT = ngram_model(5)  # no other test file's


class Clock:
  """Time that passes when it is told to."""

  now = 0.0

  def __call__(self):
    return self.now


def make(draft=DRAFT, settings=SETTINGS, **more):
  """An engine; those of one drafter and settings share their programs."""
  return Engine(
    toy.target(), draft, settings, **dict(stop_ids=toy.STOPS) | more
  )


def requests(count=14, seed=0):
  """Requests of all kinds, some of which begin alike."""
  rng = np.random.default_rng(seed)
  common = toy.prompts(200, seed=99)[0]
  found = []
  for i in range(count):
    prompt = toy.prompts(int(rng.integers(1, 150)), seed=seed + i)[0]
    if i % 3 == 0:
      prompt[: len(prompt) - 1] = common[: len(prompt) - 1]
    law = {}
    if i % 2:
      law = dict(temperature=0.8, top_k=i % 5 * 4, top_p=1 - i % 3 * 0.2)
    new = int(rng.integers(1, NEW))
    found.append(Request(prompt, new, seed=i, **law))
  return found


def alone(asked, **more):
  """The answer of each request in an engine that has no other."""
  engine = make(**more)
  answers = []
  for request in asked:
    ticket = engine.submit(request)
    engine.run()
    answers.append((ticket.tokens, ticket.finish))
  return answers


def together(engine, asked, order, turns_between=0):
  """Submits in an order, some turns apart; the answers by request."""
  tickets = {}
  for i in order:
    tickets[i] = engine.submit(asked[i])
    for _ in range(turns_between):
      engine.step()
  engine.run()
  return [(tickets[i].tokens, tickets[i].finish) for i in range(len(asked))]


@pytest.fixture(scope='module')
def warm():
  """An engine that has all programs."""
  before = len(COMPILATIONS)
  engine = make(settings=Settings(**vars(SETTINGS) | dict(prefix_blocks=5)))
  engine.warm_up()
  assert len(COMPILATIONS) > before, 'the counter does not count'
  return engine


@pytest.fixture(scope='module')
def asked():
  return requests()


@pytest.fixture(scope='module')
def expected(warm, asked):
  """Which the others must give."""
  return alone(asked)


def test_nothing_compiles_after_the_warm_up(warm, asked, expected):
  before = len(COMPILATIONS)
  assert together(warm, asked, range(14), 4) == expected
  ticket = warm.submit(Request([1, 2], 90, timeout_s=0.5))
  warm.step()
  ticket.cancel()
  together(warm, asked[1:] + asked[:1], range(14))
  assert warm.counters.cached_tokens
  assert len(COMPILATIONS) == before


@pytest.mark.parametrize('seed, apart', ((0, 0), (1, 1), (2, 4)))
def test_neighbours_slots_and_time_change_nothing(asked, expected, seed, apart):
  order = np.random.default_rng(seed).permutation(len(asked))
  assert together(make(), asked, order, apart) == expected


def test_what_the_prefix_cache_has_changes_nothing(asked, expected):
  # Of 5 blocks, fewer than the prompts have: some are dropped.
  settings = Settings(**vars(SETTINGS) | dict(prefix_blocks=5))
  engine = make(settings=settings)
  for seed in range(3):
    order = np.random.default_rng(seed).permutation(len(asked))
    assert together(engine, asked, order, seed) == expected
  assert engine.counters.cached_tokens > 64
  assert engine.counters.cached_tokens % 64 == 0


def cached_rows(engine, ticket):
  """Keys and values of both caches that a request has left in its slot."""
  state = jax.device_get(engine._batch._state)
  known = [*ticket.request.prompt, *ticket.tokens]
  of = (state.tokens_BT[:, : len(known)] == known).all(axis=1)
  slot = int(np.flatnonzero(of)[0])
  return [
    rows_BGTC[slot, :, : cache.length_B[slot]]
    for cache in (state.target_cache, state.draft_cache)
    for rows_BGTC in (*cache.k, *cache.v)
  ]


def test_a_drafter_with_a_cache_and_the_prefix_cache(asked, expected):
  """Same tokens, and same rows of both caches to the last bit."""
  settings = Settings(**vars(SETTINGS) | dict(prefix_blocks=9))
  greedy = [i for i, request in enumerate(asked) if not request.temperature]
  engine, runs = make(toy.dflash_model(), settings), []
  for _ in range(2):
    runs.append([engine.submit(asked[i]) for i in greedy])
    engine.run()
  first, again = runs
  assert [(t.tokens, t.finish) for t in first] == [expected[i] for i in greedy]
  assert sum(t.cached for t in again) > sum(t.cached for t in first) > 0
  for one, other in zip(first, again, strict=True):
    assert one.tokens == other.tokens
    assert one.accepted_hist.tolist() == other.accepted_hist.tolist()
  last = next(t for t in reversed(again) if t.cached)
  other = make(toy.dflash_model())
  ticket = other.submit(last.request)
  other.run()
  alone = cached_rows(other, ticket)
  for i in greedy[:2]:
    engine.submit(asked[i])
  last = engine.submit(last.request)
  engine.run()
  assert last.cached
  together = cached_rows(engine, last)
  assert len(alone) == 8 and alone[0].shape[1] > len(last.request.prompt)
  for one, other in zip(alone, together, strict=True):
    np.testing.assert_array_equal(one, other)


def test_fewer_rows_than_slots(asked, expected):
  """The toy's products do not depend on them, so this is exact too."""
  settings = Settings(**vars(SETTINGS) | dict(widths=(1,)))
  engine = make(settings=settings)
  engine.warm_up(sampled=False)
  greedy = [i for i, request in enumerate(asked) if not request.temperature]
  before = len(COMPILATIONS)
  found = together(engine, [asked[i] for i in greedy], range(len(greedy)), 9)
  assert found == [expected[i] for i in greedy]
  assert len(COMPILATIONS) == before


def test_none_waits_forever_to_be_read():
  """One whose pieces are small is read though large ones keep coming."""
  engine = make()
  engine.submit(Request(toy.prompts(60)[0], 2))
  small = engine.submit(Request(toy.prompts(9)[0], 2))
  for turn in range(9):
    engine.submit(Request(toy.prompts(60 - turn)[0], 2))
    engine.step()
  assert small.finish == 'length'


def test_stop_tokens():
  prompt = toy.prompts(9)[0]
  answer = alone([Request(prompt, NEW)])[0][0]
  at = next(i for i in range(4, 20) if answer[i] not in answer[:i])
  for stops, own in (((answer[at],) * 2, ()), (toy.STOPS, (answer[at],))):
    engine = make(stop_ids=stops)
    ticket = engine.submit(Request(prompt, NEW, stop_ids=own))
    other = engine.submit(Request(prompt[1:], 3))
    engine.run()
    assert ticket.tokens == answer[: at + 1]
    assert ticket.finish == 'stop'
    assert len(other.tokens) == 3


def test_tokens_are_streamed_and_timed():
  clock, seen = Clock(), []

  def on_tokens(ticket, new):
    seen.append((clock.now, new.tolist(), ticket.finish))

  engine = make(clock=clock)
  ticket = engine.submit(Request(toy.prompts(100)[0], NEW), on_tokens)
  while engine.step():
    clock.now += 1
  assert len(seen) > 2
  assert [t for _, new, _ in seen for t in new] == ticket.tokens
  assert [finish for *_, finish in seen] == [None] * (len(seen) - 1) + [
    'length'
  ]
  assert ticket.deliveries == [(now, len(new)) for now, new, _ in seen]
  assert ticket.finished == clock.now
  emitted = np.arange(1, 7) @ ticket.accepted_hist
  assert emitted == len(ticket.tokens) == engine.counters.emitted_tokens
  assert ticket.accepted_hist.sum() == ticket.rounds


def test_a_long_prompt_does_not_stall_others():
  engine = make()
  short = engine.submit(Request(toy.prompts(5)[0], 60))
  engine.step()
  long = engine.submit(Request(toy.prompts(230)[0], 4))
  counts = []
  while not long.tokens:
    engine.step()
    counts.append(len(short.tokens))
  assert len(counts) == 4  # pieces of 64, 64, 64 and the rest
  assert all(a < b for a, b in itertools.pairwise(counts))


def test_cancelling_and_timeouts():
  """Of what waits, what is read and what runs."""
  clock = Clock()
  engine = make(clock=clock)
  for how in ('cancelled', 'timeout'):
    late = dict(timeout_s=5.0) if how == 'timeout' else {}
    tickets = [
      engine.submit(Request(toy.prompts(n)[0], 50, **late))
      for n in (9, 200, 200, 9)
    ]
    kept = engine.submit(Request(toy.prompts(9)[0], NEW))
    engine.step()
    engine.step()
    assert [bool(t.tokens) for t in tickets] == [True, False, False, False]
    assert (engine.running, engine.waiting) == (1, 4)
    if how == 'cancelled':
      for ticket in tickets:
        ticket.cancel()
    else:
      clock.now += 5
    engine.run()
    assert [t.finish for t in tickets] == [how] * 4
    assert 0 < len(tickets[0].tokens) < 50
    assert kept.finish == 'length'
    assert kept.tokens == alone([kept.request])[0][0]
  assert engine.counters.finished == {'cancelled': 4, 'timeout': 4, 'length': 2}


def test_a_full_queue_refuses():
  engine = make(settings=Settings(**vars(SETTINGS) | dict(queue=2)))
  tickets = [engine.submit(Request([1, 2], 3)) for _ in range(2)]
  with pytest.raises(
    Overloaded, match='^2 requests wait already, which is all that may; try'
  ):
    engine.submit(Request([1, 2], 3))
  engine.run()
  assert [t.finish for t in tickets] == ['length'] * 2
  assert engine.counters.refused == 1
  engine.submit(Request([1, 2], 3))


def test_a_broken_callback_ends_its_own_request_only():
  def broken(ticket, new):
    raise RuntimeError('gone')

  engine = make()
  bad = engine.submit(Request([1, 2, 3], NEW), broken)
  good = engine.submit(Request([1, 2, 3], NEW))
  engine.run()
  assert (bad.finish, str(bad.error)) == ('cancelled', 'gone')
  assert good.tokens == alone([good.request])[0][0]


def test_failure_ends_all():
  engine = make()
  tickets = [engine.submit(Request([1, 2], NEW)) for _ in range(9)]
  engine.step()
  engine.fail(RuntimeError('device lost'))
  assert {t.finish for t in tickets} == {'failed'}
  assert {str(t.error) for t in tickets} == {'device lost'}
  assert not engine.step()


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(prompt=[]), 'prompt is empty'),
    (dict(prompt='hi'), "prompt is 'hi', expected token ids"),
    (dict(prompt=[[1]]), 'prompt is [[1]], expected token ids'),
    (dict(prompt=[1, 61]), 'prompt has token id 61, expected 0..60'),
    (dict(prompt=[True]), 'prompt has token id True, expected 0..60'),
    (dict(stop_ids=[-1]), 'stop_ids has token id -1, expected 0..60'),
    (dict(max_new_tokens=0), 'max_new_tokens = 0, expected 1..512'),
    (
      dict(max_new_tokens=250),
      'prompt has 3 tokens; with 250 new ones it needs 259 rows, and capacity '
      '= 256',
    ),
    (
      dict(max_new_tokens=510),
      'prompt has 3 tokens; with 510 new ones that exceeds the context of 512 '
      '...',
    ),
    (dict(temperature=-1.0), 'temperature = -1.0, expected 0 (greedy) or ...'),
    (dict(top_p=float('nan')), 'top_p = nan, expected above 0 and at most 1'),
    (dict(seed=-1), 'seed = -1, expected 0..4294967295'),
    (dict(timeout_s=0), 'timeout_s = 0, expected a number above 0'),
    (dict(timeout_s='1'), "timeout_s = '1', expected a number above 0"),
  ),
)
def test_bad_requests(change, message, refused):
  engine = make()
  with refused(message):
    engine.submit(Request(**dict(prompt=[1, 2, 3], max_new_tokens=9) | change))
  assert not engine.waiting


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(slots=0), 'slots = 0, expected 1..2147483647'),
    (dict(chunks=()), 'chunks is empty, expected at least one size'),
    (dict(chunks=(64, 16)), 'chunks = (64, 16), expected ascending sizes'),
    (dict(chunks=(257,)), 'chunks = 257, expected 1..256'),
    (dict(widths=(3,)), 'widths = 3, expected 1..2'),
    (dict(rounds=0), 'rounds = 0, expected 1..2147483647'),
    (dict(slots=10**8), 'batch ... at capacity 256 needs ... GiB ...'),
  ),
)
def test_bad_settings(change, message, refused):
  with refused(message):
    make(settings=Settings(**vars(SETTINGS) | change))
