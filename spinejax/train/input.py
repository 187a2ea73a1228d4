"""Batches of a data set, by grain: shuffled, padded, endless, resumable."""

import dataclasses
import functools
import os
from collections.abc import Sequence

import grain
import numpy as np
from absl import flags

from spinejax.errors import InputError
from spinejax.train.shards import DataSet, decode, open_data

Source = DataSet | str | os.PathLike[str]

# Batches made ahead. The default, 500, takes seconds from the tracing of the
# first step, with which these threads share Python.
_AHEAD = 32


def make_input(
  data: Source,
  *,
  batch: int,
  length: int,
  seed: int,
  workers: int = 0,
  buckets: Sequence[int] = (),
  holdout: int = 0,
) -> grain.DatasetIterator:
  """Endless batches to train on, in another order each epoch.

  The iterator's `get_state()` is a small dictionary; with `set_state` of it,
  an iterator made with the same arguments goes on with the very same batches.

  Args:
    data: a folder, or what `open_data` found in it.
    batch: sequences a batch, B.
    length: tokens that batches are padded to, T.
    seed: decides every order.
    workers: processes that make batches ahead; 0: threads of this one.
    buckets: shorter lengths, ascending. Then sequences are batched with those
      that are padded to the same length, so that few shapes of batches occur.
      A bucket with less than a batch is joined to its neighbour. Each epoch
      leaves out what does not fill a batch of its bucket.
    holdout: the last so many sequences are left out.

  Returns:
    An iterator of `{'tokens_BT', 'answer_B', 'length_B'}`, int32 NumPy arrays:
    ids padded with 0, index of the first answer token, valid tokens.

  Raises:
    InputError: the data is not in order (see `open_data`), or an argument does
      not fit it.
  """
  data, count = _split(data, batch, length, holdout)
  if workers < 0:
    raise InputError(f'workers = {workers}, expected at least 0')
  if not 0 <= seed < 2**32:
    raise InputError(f'seed = {seed}, expected 0..{2**32 - 1}')
  if count < batch:
    raise InputError(
      f'{count} sequences are less than one batch of {batch}; write more data '
      'or lower the batch'
    )
  seeds = np.random.SeedSequence(seed).generate_state(len(buckets) + 2)
  parts = [
    _batches(data, members, size, batch, int(one), drop_remainder=True)
    for one, (size, members) in zip(
      seeds[1:],
      _by_bucket(data.length_N[:count], batch, length, buckets).items(),
      strict=False,
    )
  ]
  # The epoch's number passes through, so that each epoch shuffles the
  # sequences of a bucket anew, and then the batches of all buckets.
  ds = grain.MapDataset.concatenate(parts).shuffle(seed=int(seeds[0])).repeat()
  ds = ds.to_iter_dataset(grain.ReadOptions(prefetch_buffer_size=_AHEAD))
  if workers:
    # grain reads flags of its own, which only a binary of absl has parsed.
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
  return iter(ds)


def make_holdout(
  data: Source, *, batch: int, length: int, holdout: int
) -> grain.DatasetIterator:
  """One pass over the sequences that `make_input` leaves out, in order.

  Batches are as there; the last is filled up with sequences of length 0.

  Raises:
    InputError: as `make_input`.
  """
  data, count = _split(data, batch, length, holdout)
  members = np.arange(count, len(data))
  return iter(_batches(data, members, length, batch).to_iter_dataset())


def _split(
  data: Source, batch: int, length: int, holdout: int
) -> tuple[DataSet, int]:
  """The data set, and how many sequences of it are trained on."""
  for field, value in (('batch', batch), ('length', length)):
    if value < 1:
      raise InputError(f'{field} = {value}, expected at least 1')
  if not isinstance(data, DataSet):
    data = open_data(data, longest=length)
  longest = data.length_N.max()
  if longest > length:
    raise InputError(
      f'length = {length}, expected at least {longest}, the longest sequence '
      f'of {data.folder}'
    )
  if not 0 <= holdout < len(data):
    raise InputError(
      f'holdout = {holdout}, expected at least 0 and less than the '
      f'{len(data)} sequences of {data.folder}'
    )
  return data, len(data) - holdout


def _by_bucket(
  length_N: np.ndarray, batch: int, length: int, buckets: Sequence[int]
) -> dict[int, np.ndarray]:
  """Sequence numbers by the length they are padded to."""
  edges = [*buckets, length]
  if edges != sorted(set(edges)) or edges[0] < 1:
    raise InputError(
      f'buckets = {tuple(buckets)}, expected ascending lengths below {length}'
    )
  which_N = np.searchsorted(edges, length_N)
  found: dict[int, np.ndarray] = {}
  waiting = np.zeros((0,), np.int64)
  for i, edge in enumerate(edges):
    waiting = np.concatenate([waiting, np.flatnonzero(which_N == i)])
    if len(waiting) >= batch:
      found[edge], waiting = np.sort(waiting), waiting[:0]
  if len(waiting):  # too few, and none longer: the last bucket takes them
    _, members = found.popitem()
    found[length] = np.sort(np.concatenate([members, waiting]))
  return found


def _batches(
  data: DataSet,
  members: np.ndarray,
  length: int,
  batch: int,
  seed: int | None = None,
  drop_remainder: bool = False,
) -> grain.MapDataset:
  """Batches of some sequences, padded to `length`; in order without a seed."""
  ds = grain.MapDataset.source(members)
  if seed is not None:
    ds = ds.shuffle(seed=seed)
  records = grain.sources.ArrayRecordDataSource(list(data.paths))
  return ds.map(_Read(records, data.dtype)).batch(
    batch,
    drop_remainder=drop_remainder,
    batch_fn=functools.partial(_pad, batch=batch, length=length),
  )


@dataclasses.dataclass(frozen=True)
class _Read(grain.transforms.Map):
  """Token ids and start of the answer of a sequence, by its number."""

  records: grain.sources.ArrayRecordDataSource
  dtype: np.dtype

  def map(self, number: int) -> tuple[np.ndarray, int]:
    return decode(self.records[int(number)], self.dtype)


def _pad(
  sequences: Sequence[tuple[np.ndarray, int]], *, batch: int, length: int
) -> dict[str, np.ndarray]:
  tokens_BT = np.zeros((batch, length), np.int32)
  answer_B, length_B = np.zeros((2, batch), np.int32)
  for i, (tokens, answer) in enumerate(sequences):
    tokens_BT[i, : len(tokens)] = tokens
    answer_B[i], length_B[i] = answer, len(tokens)
  return {'tokens_BT': tokens_BT, 'answer_B': answer_B, 'length_B': length_B}
