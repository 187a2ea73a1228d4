"""An engine that chooses between turns what to verify: the answers stay, the
programs are there, and what is chosen is what pays."""

import dataclasses
import itertools

import numpy as np
import pytest

from spinejax.decode.batch import Settings
from spinejax.decode.cost import BudgetTable
from spinejax.decode.engine import Engine
from spinejax.decode.schedule import PLAIN
from spinejax.decode.scheduler import Scheduling
from spinejax.decode.ticket import Request
from spinejax.drafters.loading import ngram_model, plain_model
from tests.compilations import COMPILATIONS
from tests.decode import toy

SETTINGS = Settings(
  slots=4, capacity=256, readers=2, chunks=(32,), rounds=4, widths=(2,)
)
WIDE = dataclasses.replace(SETTINGS, widths=())
# A round of 4 requests of 5 rows: as on a machine on which rows cost.
TABLE = BudgetTable(4, 10.0, {10: 14.0, 20: 20.0})
NEW = 60
PROMPT = toy.prompts(9)[0]


def make(draft, settings=SETTINGS, **more):
  return Engine(toy.target(), draft, settings, stop_ids=toy.STOPS, **more)


def answers(engine, asked, apart=0):
  tickets = []
  for request in asked:
    tickets.append(engine.submit(request))
    for _ in range(apart):
      engine.step()
  engine.run()
  return [(ticket.tokens, ticket.finish) for ticket in tickets]


def requests(count, **law):
  rng = np.random.default_rng(count)
  return [
    Request(
      toy.prompts(int(rng.integers(1, 90)), seed=i)[0],
      int(rng.integers(1, 40)), seed=i, **law,
    )
    for i in range(count)
  ]  # fmt: skip


def test_any_choice_gives_the_same_answers():
  """All ways in turn, with any number of requests; nothing is compiled."""
  engine = make(ngram_model(4), scheduling=Scheduling(shares=(0.5,)))
  engine.warm_up(sampled=False)
  assert {
    key: list(t.drafted) for key, t in engine.scheduler.costs.items()
  } == {
    (2, True): [5, 10],
    (4, True): [10, 20],
  }
  for table in engine.scheduler.costs.values():
    assert table.unit == 'ms' and min(table.plain, *table.drafted.values()) > 0
  turn = itertools.count()

  def any_way(width, live, greedy):
    ways = list(engine.scheduler.ways[width])
    return ways[next(turn) % len(ways)], 3

  engine.scheduler.choose = any_way
  asked, before = requests(14), len(COMPILATIONS)
  found = answers(engine, asked, apart=2)
  assert len(COMPILATIONS) == before
  assert found == answers(make(plain_model(), WIDE), asked)
  # Rounds are those of all requests, and each has its tokens from some.
  rounds = engine.counters.rounds
  assert min(rounds[kind] for kind in ('plain', 'packed', 'padded')) > 9


def oracle(right: bool):
  """What knows the answer to PROMPT in every slot, or always says another."""
  [(known, _)] = answers(make(plain_model(), WIDE), [Request(PROMPT, 200)])
  if not right:
    known = [(token + 1) % (toy.V - 1) for token in known]
  every = dict(wrong_every=1000, gap_every=1000)
  return toy.oracle_model([PROMPT] * 4, [known] * 4, **every)


def busy(draft, scheduling, count=24, **law):
  """An engine, after requests that all ask the same."""
  engine = make(draft, WIDE, scheduling=scheduling)
  asked = [Request(PROMPT, NEW, seed=i, **law) for i in range(count)]
  return engine, answers(engine, asked)


def test_what_is_never_right_is_given_up():
  engine, found = busy(oracle(False), Scheduling(tables=[TABLE]), 30)
  [expected] = answers(make(plain_model(), WIDE), [Request(PROMPT, NEW)])
  assert found == [expected] * 30
  rounds = engine.counters.rounds
  assert rounds['plain'] > 0.8 * rounds.total()
  # It is tried again all the same, and ever more seldom.
  before = rounds.copy()
  assert answers(engine, [Request(PROMPT, NEW)] * 60) == [expected] * 60
  rounds.subtract(before)
  assert 0.93 * rounds.total() < rounds['plain'] < rounds.total()


def test_what_is_always_right_is_used():
  engine, found = busy(oracle(True), Scheduling(tables=[TABLE]))
  [expected] = answers(make(plain_model(), WIDE), [Request(PROMPT, NEW)])
  assert found == [expected] * 24
  rounds = engine.counters.rounds
  assert not rounds['plain']
  assert engine.scheduler.control.survival_S[-1] > 0.9
  # Two requests fit the lesser budget in full, four do not.
  assert 0 < rounds['packed'] < rounds['padded'] < 24 / 4 * NEW / 3


@pytest.mark.parametrize(
  'plain, packed, padded, kind',
  (
    (10.0, 14.0, 99.0, 'packed'),
    (2.0, 14.0, 20.0, 'plain'),
    (10.0, 99.0, 20.0, 'padded'),
  ),
)
def test_it_follows_the_costs(plain, packed, padded, kind):
  """The drafter is right every time; what that is worth is a question."""
  table = BudgetTable(4, plain, {10: packed, 20: padded}, 'joules')
  engine, _ = busy(oracle(True), Scheduling(tables=[table]))
  rounds = engine.counters.rounds
  assert rounds[kind] > 0.8 * rounds.total()


def test_counts_are_those_of_each_request():
  """Slots are refilled, and what was counted in them before stays out."""
  engine = make(oracle(True), WIDE, scheduling=Scheduling(tables=[TABLE]))
  told, note = [], engine.scheduler.note

  def noted(news, slots, ran):
    note(news, slots, ran)
    told.append((engine.scheduler._new_S.copy(), len(slots) * ran))

  engine.scheduler.note = noted
  answers(engine, [Request(PROMPT, 9 + i) for i in range(12)])
  for (judged_S, passed_S), most in told:
    assert (0 <= passed_S).all() and (passed_S <= judged_S).all()
    assert judged_S[0] <= most
  assert sum(judged_S[0] for (judged_S, _), _ in told) > 20


def test_reproducible():
  """A sampled answer hangs on nothing else, and greedy ones may be chosen."""
  law = dict(temperature=0.8, top_k=9)
  dear = BudgetTable(4, 1.0, {10: 98.0, 20: 99.0})
  scheduling = Scheduling(tables=[dear], reproducible=True)
  engine, found = busy(ngram_model(4), scheduling, 9, **law)
  alone = make(ngram_model(4), WIDE)
  assert found == answers(alone, [
    Request(PROMPT, NEW, seed=i, **law) for i in range(9)
  ])  # fmt: skip
  assert list(engine.counters.rounds) == ['padded']
  answers(engine, [Request(PROMPT, NEW)] * 9)
  assert engine.counters.rounds['plain'] > 90


def test_without_costs_everything_is_verified():
  engine, _ = busy(ngram_model(4), Scheduling(), 2)
  assert list(engine.counters.rounds) == ['padded']


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(shares=(1.0,)), 'shares has 1.0, expected between 0 and 1'),
    (
      dict(temperature_S=[1.0]),
      'temperature_S has 1 numbers, expected 4: one for each slot of the ...',
    ),
    (
      dict(tables=[TABLE]),
      'tables has none for 2 requests; rounds are compiled for 2, 4',
    ),
    (
      dict(tables=[TABLE, BudgetTable(2, 1.0, {11: 2.0})]),
      'budget = 11, expected 2..10: 2 requests of 5 rows at most',
    ),
  ),
)
def test_bad_scheduling(change, message, refused):
  with refused(message):
    make(ngram_model(4), scheduling=Scheduling(**change))


def test_plain_decoding_has_no_choice(refused):
  with refused('drafter plain proposes nothing: there is nothing to schedule'):
    make(plain_model(), scheduling=Scheduling())


def test_the_ways_of_a_width():
  scheduling = Scheduling((0.25, 0.5), temperature_S=[2.0] * 4)
  ways = make(ngram_model(4), scheduling=scheduling).scheduler.ways
  assert {n: list(each) for n, each in ways.items()} == {
    2: [PLAIN, 5, 10],  # a quarter is a row each: none for proposals
    4: [PLAIN, 5, 10, 20],
  }
  assert ways[4][20] == {} and ways[4][PLAIN] == {'budget': PLAIN}
  assert ways[4][5]['schedule'].budget == 5
  assert ways[4][5]['schedule'].temperature_S.tolist() == [2.0] * 4
