"""Batches by grain: epochs, buckets, the split, and exact resuming."""

import collections
import itertools
import json
import types

import numpy as np
import pytest

from spinejax.train.input import make_holdout, make_input
from spinejax.train.shards import Writer, Written, open_data

COUNT, BATCH, LENGTH = 50, 4, 24
TARGET = types.SimpleNamespace(
  name='tiny', head_hash='ab', cfg=types.SimpleNamespace(vocab=300)
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Sequence i starts with token i, in shards of 20; its length is known."""
  folder = tmp_path_factory.mktemp('data')
  writer = Writer(folder, TARGET, shards=3, config={})
  for first in range(0, COUNT, 20):
    writer.add(
      [
        Written('chat', np.r_[i, np.full(length_of(i) - 1, 7)], 1 + i % 3)
        for i in range(first, min(first + 20, COUNT))
      ]
    )
  return folder


def length_of(i: int) -> int:
  return 4 + (i * 7) % 20  # 4..23, all alike often


def take(iterator, count):
  return list(itertools.islice(iterator, count))


def numbers(batches):
  return [int(i) for b in batches for i in b['tokens_BT'][:, 0]]


def same(a, b):
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert x.keys() == y.keys()
    for field in x:
      np.testing.assert_array_equal(x[field], y[field])


def test_batches(folder):
  batches = make_input(folder, batch=BATCH, length=LENGTH, seed=1)
  for batch in take(batches, 5):
    assert set(batch) == {'tokens_BT', 'answer_B', 'length_B'}
    assert {x.dtype for x in batch.values()} == {np.dtype('int32')}
    assert batch['tokens_BT'].shape == (BATCH, LENGTH)
    for row, answer, length in zip(*batch.values(), strict=True):
      i = row[0]
      assert (answer, length) == (1 + i % 3, length_of(i))
      assert (row[1:length] == 7).all() and not row[length:].any()


@pytest.mark.parametrize('buckets', ((), (10,), (8, 16)))
def test_epochs(folder, buckets):
  """Each has every sequence once but a rest, and an order of its own."""
  how = dict(batch=BATCH, length=LENGTH, buckets=buckets, holdout=6)
  batches = make_input(folder, seed=1, **how)
  edges = [*buckets, LENGTH]
  sizes = collections.Counter(
    min(e for e in edges if e >= length_of(i)) for i in range(COUNT - 6)
  )
  steps = sum(size // BATCH for size in sizes.values())
  epochs = [take(batches, steps) for _ in range(12)]
  for epoch in epochs:
    seen = numbers(epoch)
    assert len(set(seen)) == len(seen) == steps * BATCH
    shapes = collections.Counter(b['tokens_BT'].shape[1] for b in epoch)
    assert shapes == {e: size // BATCH for e, size in sizes.items()}
    for batch in epoch:
      shorter = [e for e in edges if e < batch['tokens_BT'].shape[1]]
      assert batch['length_B'].min() > max(shorter, default=0)
  orders = [tuple(numbers(epoch)) for epoch in epochs]
  assert len(set(orders)) == len(orders)
  # Other batches too, not only another order of the same ones.
  members = [{frozenset(numbers([b])) for b in epoch} for epoch in epochs]
  assert len(members[0] & members[1]) <= 1
  # In time the rest takes part; the split never does.
  assert set(numbers(sum(epochs, []))) == set(range(COUNT - 6))
  same(epochs[0], take(make_input(folder, seed=1, **how), steps))
  assert numbers(take(make_input(folder, seed=2, **how), steps)) != [*orders[0]]


def test_small_buckets_join_their_neighbours(folder):
  few = sum(length_of(i) <= 4 for i in range(COUNT))
  assert 0 < few < BATCH
  batches = make_input(
    folder, batch=BATCH, length=30, seed=0, buckets=(4, 12, 23)
  )
  widths = {b['tokens_BT'].shape[1] for b in take(batches, 30)}
  assert widths == {12, 23}  # none for 30: nothing is longer than 23
  # Of those above 22 tokens too few are left: the longest bucket takes more.
  batches = make_input(folder, batch=BATCH, length=24, seed=0, buckets=(12, 22))
  seen = take(batches, 60)
  assert {b['tokens_BT'].shape[1] for b in seen} == {12, 24}
  assert set(numbers(seen)) == set(range(COUNT))


def test_holdout_in_order(folder):
  data = open_data(folder)
  batches = list(make_holdout(data, batch=BATCH, length=LENGTH, holdout=6))
  assert [b['tokens_BT'].shape for b in batches] == [(BATCH, LENGTH)] * 2
  assert numbers(batches) == [*range(COUNT - 6, COUNT), 0, 0]
  assert batches[1]['length_B'].tolist()[2:] == [0, 0]
  assert batches[1]['answer_B'].tolist()[2:] == [0, 0]
  assert not list(make_holdout(data, batch=BATCH, length=LENGTH, holdout=0))


@pytest.mark.parametrize('workers', (0, 2))
def test_a_restored_state_goes_on_with_the_same_batches(folder, workers):
  how = dict(batch=BATCH, length=LENGTH, seed=5, buckets=(12,), holdout=6)
  alone = take(make_input(folder, **how), 40)
  first = make_input(folder, workers=workers, **how)
  same(take(first, 13), alone[:13])
  state = json.loads(json.dumps(first.get_state()))
  same(take(first, 5), alone[13:18])
  first.close()
  # In another process, as it were; and over the end of an epoch.
  second = make_input(folder, workers=workers, **how)
  second.set_state(state)
  same(take(second, 27), alone[13:])
  second.close()


@pytest.mark.parametrize(
  'changes, message',
  (
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(length=0), 'length = 0, expected at least 1'),
    (dict(workers=-1), 'workers = -1, expected at least 0'),
    (dict(seed=-1), 'seed = -1, expected 0..4294967295'),
    (dict(batch=51), '50 sequences are less than one batch of 51; ...'),
    (dict(holdout=47), '3 sequences are less than one batch of 4; ...'),
    (
      dict(holdout=50),
      'holdout = 50, expected at least 0 and less than the 50 sequences of ...',
    ),
    (
      dict(buckets=(12, 12)),
      'buckets = (12, 12), expected ascending lengths below 24',
    ),
    (dict(buckets=(0,)), 'buckets = (0,), expected ascending ... below 24'),
    (dict(buckets=(24,)), 'buckets = (24,), expected ascending ... below 24'),
  ),
)
def test_bad_input(folder, refused, changes, message):
  how = dict(batch=BATCH, length=LENGTH, seed=0) | changes
  with refused(message):
    make_input(folder, **how)


def test_long_sequences(folder, refused):
  with refused('...00000.arrayrecord: sequence 17 has 23 tokens, ... most 22'):
    make_input(folder, batch=BATCH, length=22, seed=0)
  with refused(
    f'length = 22, expected at least 23, the longest sequence of {folder}'
  ):
    make_input(open_data(folder), batch=BATCH, length=22, seed=0)


def test_damaged_data_is_refused_before_the_first_batch(tmp_path, refused):
  with refused(f'{tmp_path}/none: no such folder; write the data first'):
    make_input(tmp_path / 'none', batch=1, length=LENGTH, seed=0)
