"""Many prompts through few slots: the tokens are those of `generate`."""

import dataclasses

import numpy as np
import pytest

from spinejax.decode.engine import Engine
from spinejax.decode.slots import complete
from spinejax.drafters.loading import plain_model
from tests.compilations import COMPILATIONS
from tests.decode import toy

CAPACITY = 128


@pytest.fixture(scope='module')
def target():
  """One whose answers end at different lengths."""
  return with_stop(toy.target(), 5, 23)


def with_stop(target, *ids):
  tokenizer = toy.Ids()
  tokenizer.stop_ids = ids
  return dataclasses.replace(target, tokenizer=tokenizer)


def ask(target, count, slots, **law):
  rng = np.random.default_rng(count)
  lengths = rng.integers(1, 80, count)
  prompts = toy.prompts(*lengths, seed=count)
  rooms = rng.integers(1, 40, count)
  return prompts, rooms, complete(
    target, prompts, ends=lengths + rooms, seeds=range(7, 7 + count),
    slots=slots, capacity=CAPACITY, **law,
  )  # fmt: skip


def expected(target, prompts, rooms, **law):
  return toy.answers(
    target, plain_model(), prompts, max_new_tokens=rooms.tolist(), seed=7,
    stop_ids=target.tokenizer.stop_ids, capacity=CAPACITY, **law,
  )  # fmt: skip


# Groups of one and of two; with rests, and with slots that are never filled.
@pytest.mark.parametrize('count, slots', ((13, 4), (41, 17), (3, 17)))
def test_greedy(target, count, slots):
  prompts, rooms, found = ask(target, count, slots)
  wanted = expected(target, prompts, rooms)
  assert [x.tolist() for x in found] == wanted
  sizes = [len(x) for x in wanted]
  assert sum(sizes) > 2 * count
  if count > 3:
    assert (sizes < rooms).any() and (sizes == rooms).any()


def test_sampled(target):
  """A prompt draws from its own seed, wherever it is."""
  law = dict(temperature=1.0, top_k=9)
  prompts, rooms, found = ask(target, 13, 4, **law)
  assert [x.tolist() for x in found] == expected(target, prompts, rooms, **law)


def test_any_number_of_prompts_compiles_once(target):
  ask(target, 13, 4)
  before = len(COMPILATIONS)
  ask(target, 22, 4)
  assert len(COMPILATIONS) == before


def test_slots_are_not_left_idle(target, monkeypatch):
  """But for a group, as long as there are prompts."""
  busy, run = [], Engine._run

  def watched(engine):
    busy.append((engine.running, engine.waiting))
    run(engine)

  monkeypatch.setattr(Engine, '_run', watched)
  ask(target, 41, 17)
  assert len(busy) > 4
  assert all(running == 17 for running, waiting in busy if waiting)


def test_nothing_to_do(target):
  assert complete(target, [], ends=[], seeds=[], slots=2) == []


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(ends=[3]), 'prompt 0 has 3 tokens, expected 1..2'),
    (dict(prompts=[[]]), 'prompt 0 has 0 tokens, expected 1..8'),
    (dict(slots=0), 'slots = 0, expected 1...'),
    (dict(capacity=9), 'capacity = 9, expected 10...'),
    (
      dict(ends=[600]),
      'prompt 0 has 3 tokens; with 597 new ones that exceeds the context of '
      '512 that toy-qwen3 was trained for',
    ),
    (dict(top_k=-1), 'top_k = -1, expected a whole number, ...'),
  ),
)
def test_bad_input(change, message, refused):
  settings = dict(prompts=[[1, 2, 3]], ends=[9], seeds=[0], slots=2)
  with refused(message):
    complete(toy.target(), **settings | change)


def test_memory(refused):
  with refused('batch ... at capacity 128 needs ... GiB for caches ...'):
    complete(
      toy.target(), [[1]], ends=[9], seeds=[0], slots=10**7, capacity=128
    )
