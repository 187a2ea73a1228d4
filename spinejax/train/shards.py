"""Training data on disk: a folder of shards and the manifest that lists them.

A shard is an ArrayRecord file; a record is one sequence: the index of its
first answer token (uint32), then its token ids (uint16 or uint32, as the
manifest says), little-endian. A shard is whole on disk before it gets its
name, and listed after that. So a writer that was killed goes on behind the
last shard listed, and equal sequences give equal bytes.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

from spinejax.drafters.files import sha256_of
from spinejax.errors import InputError
from spinejax.report.results import atomic_write, portable
from spinejax.target.loading import Target
from spinejax.target.parse import read_json, understood

MANIFEST = 'manifest.json'
# A record alone in its chunk is read at random without its neighbours. Token
# ids of 16 bits are dense: compression would save nothing.
_OPTIONS = 'group_size:1,uncompressed'
_HEADER = np.dtype('<u4')
_COUNTS = ('sequences', 'tokens', 'answer_tokens')


@dataclasses.dataclass(frozen=True)
class Written:
  """One sequence to store: its kind, its token ids, where its answer starts."""

  kind: str
  tokens: np.ndarray
  answer: int


@dataclasses.dataclass(frozen=True)
class DataSet:
  """A data set that was found whole.

  Attributes:
    folder: where it is.
    manifest: who wrote it and how, its shards and counts.
    paths: its shards, in order.
    dtype: of the stored token ids.
    length_N: tokens of every sequence, over all shards.
  """

  folder: pathlib.Path
  manifest: dict[str, Any]
  paths: tuple[str, ...]
  dtype: np.dtype
  length_N: np.ndarray

  @property
  def hash(self) -> str:
    """Identity of what the shards hold."""
    hashes = ''.join(shard['sha256'] for shard in self.manifest['shards'])
    return hashlib.sha256(hashes.encode()).hexdigest()[:16]

  def __len__(self) -> int:
    """The number of sequences."""
    return len(self.length_N)


def decode(record: bytes, dtype: np.dtype) -> tuple[np.ndarray, int]:
  """Token ids, as stored, and the start of the answer of a record."""
  answer = np.frombuffer(record, _HEADER, 1)[0]
  return np.frombuffer(record, dtype, offset=_HEADER.itemsize), int(answer)


def open_data(
  folder: str | os.PathLike[str],
  *,
  target: Target | None = None,
  longest: int | None = None,
) -> DataSet:
  """A data set, every byte of which was checked.

  Args:
    folder: what `Writer` wrote; it need not be finished.
    target: who must have written it, if given.
    longest: tokens that a sequence may have at most, if given.

  Raises:
    InputError: there is none, a shard is missing or damaged, another target
      wrote it, a token id is outside the vocabulary, or a sequence is too long.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise InputError(f'{folder}: no such folder; write the data first')
  if not (folder / MANIFEST).exists():
    raise InputError(f'{folder}: has no {MANIFEST}; write the data first')
  manifest = read_json(folder / MANIFEST)
  with understood(folder / MANIFEST):
    shards = _shards(manifest)
    vocab, dtype = int(manifest['vocab']), np.dtype(manifest['dtype'])
    writer = (manifest['target'], manifest['head_hash'])
  if target is not None and writer[1] != target.head_hash:
    raise InputError(f'{folder}: written by {writer[0]}, not by {target.name}')
  if target is not None:
    vocab = target.cfg.vocab
  lengths = [
    _check(folder / name, records, sha256, dtype, vocab, longest)
    for name, records, sha256 in shards
  ]
  if not sum(map(len, lengths)):
    raise InputError(f'{folder}: has no sequences')
  return DataSet(
    folder,
    manifest,
    tuple(str(folder / name) for name, _, _ in shards),
    dtype,
    np.concatenate(lengths),
  )


def _shards(manifest: Mapping[str, Any]) -> list[tuple[str, int, str]]:
  return [
    (str(s['file']), int(s['records']), str(s['sha256']))
    for s in manifest['shards']
  ]


def _check(
  path: pathlib.Path,
  records: int,
  sha256: str,
  dtype: np.dtype,
  vocab: int,
  longest: int | None,
) -> np.ndarray:
  """Lengths of the sequences of one shard, all found to be in order."""
  found = _read(path, records, sha256)
  answer_N = np.frombuffer(b''.join(r[:4] for r in found), _HEADER)
  bodies = b''.join(r[4:] for r in found)
  length_N = np.array([len(r) - 4 for r in found], np.int64) // dtype.itemsize
  if np.any(answer_N > length_N):
    i = int(np.argmax(answer_N > length_N))
    raise InputError(
      f'{path}: the answer of sequence {i} starts at {answer_N[i]}, expected '
      f'at most its {length_N[i]} tokens'
    )
  ids = np.frombuffer(bodies, dtype)
  if ids.size and ids.max() >= vocab:
    at = int(np.argmax(ids >= vocab))
    i = int(np.searchsorted(np.cumsum(length_N), at, side='right'))
    raise InputError(
      f'{path}: sequence {i} has token id {ids[at]}, expected 0..{vocab - 1}'
    )
  if longest is not None and length_N.size and length_N.max() > longest:
    i = int(np.argmax(length_N > longest))
    raise InputError(
      f'{path}: sequence {i} has {length_N[i]} tokens, expected at most '
      f'{longest}'
    )
  return length_N


def _read(path: pathlib.Path, records: int, sha256: str) -> list[bytes]:
  """All records of a shard that is as the manifest says."""
  if not path.is_file():
    raise InputError(f'{path}: no such file, though the manifest lists it')
  found = sha256_of(path)
  if found != sha256:
    raise InputError(
      f'{path}: damaged (its SHA-256 is {found[:12]}..., the manifest says '
      f'{sha256[:12]}...)'
    )
  reader = array_record_module.ArrayRecordReader(str(path))
  try:
    if reader.num_records() != records:
      raise InputError(
        f'{path}: has {reader.num_records()} sequences, the manifest says '
        f'{records}'
      )
    return reader.read_all() if records else []
  finally:
    reader.close()


class Writer:
  """Writes a data set shard by shard, or goes on with one.

  Exact repetitions are dropped, over all shards. Use:

    writer = Writer(folder, target, shards=4, config=config)
    for number in range(writer.next, 4):
      writer.add(sequences_of(number))

  Args:
    folder: made if it is not there.
    target: who writes.
    shards: how many there will be; the data set is finished with the last.
    config: all that decides what is written.

  Raises:
    InputError: the folder holds data of another target or config, a shard of
      it is damaged, or it cannot be written to.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    target: Target,
    *,
    shards: int,
    config: Any,
  ):
    self._folder = pathlib.Path(folder)
    self._total = shards
    self._seen: set[bytes] = set()
    self._dtype = np.dtype('<u2' if target.cfg.vocab <= 2**16 else '<u4')
    self._head = {
      'target': target.name,
      'head_hash': target.head_hash,
      'vocab': target.cfg.vocab,
      'dtype': self._dtype.str,
      'config': portable(config),
    }
    self._shards = self._found() if (self._folder / MANIFEST).exists() else []
    for name in ('shard-*', f'{MANIFEST}.*'):  # of runs that were killed
      for left in self._folder.glob(f'.{name}.tmp'):
        left.unlink()

  @property
  def next(self) -> int:
    """The number of the shard that `add` writes."""
    return len(self._shards)

  @property
  def manifest(self) -> dict[str, Any]:
    """What the manifest says now."""
    kinds: dict[str, collections.Counter] = {}
    for shard in self._shards:
      for kind, counts in shard['kinds'].items():
        kinds.setdefault(kind, collections.Counter()).update(counts)
    totals = {c: sum(k[c] for k in kinds.values()) for c in _COUNTS}
    return self._head | totals | {
      'repetitions': sum(s['repetitions'] for s in self._shards),
      'kinds': {kind: dict(kinds[kind]) for kind in sorted(kinds)},
      'finished': self.next == self._total,
      'shards': self._shards,
    }  # fmt: skip

  def add(self, sequences: Sequence[Written]) -> None:
    """Writes the next shard, then the manifest that lists it."""
    kinds: dict[str, collections.Counter] = {}
    records = []
    for one in sequences:
      body = one.tokens.astype(self._dtype).tobytes()
      if self._is_new(body):
        counts = (1, len(one.tokens), len(one.tokens) - one.answer)
        kinds.setdefault(one.kind, collections.Counter()).update(
          dict(zip(_COUNTS, counts, strict=True))
        )
        records.append(np.array([one.answer], _HEADER).tobytes() + body)
    name = f'shard-{self.next:05d}.arrayrecord'
    sha256 = self._write(self._folder / name, records)
    self._shards.append({
      'file': name,
      'records': len(records),
      'sha256': sha256,
      'repetitions': len(sequences) - len(records),
      'kinds': {kind: dict(kinds[kind]) for kind in sorted(kinds)},
    })  # fmt: skip
    text = json.dumps(self.manifest, indent=2) + '\n'
    atomic_write(self._folder / MANIFEST, text.encode())

  def _is_new(self, body: bytes) -> bool:
    digest = hashlib.blake2b(body, digest_size=16).digest()
    new = digest not in self._seen
    self._seen.add(digest)
    return new

  def _write(self, path: pathlib.Path, records: list[bytes]) -> str:
    """Puts a whole shard in its place; its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f'.{path.name}.tmp')
    writer = array_record_module.ArrayRecordWriter(str(draft), _OPTIONS)
    for record in records:
      writer.write(record)
    writer.close()
    with draft.open('rb') as file:
      os.fsync(file.fileno())
    sha256 = sha256_of(draft)
    os.replace(draft, path)
    return sha256

  def _found(self) -> list[dict[str, Any]]:
    """Shards that are listed and whole; remembers what they hold."""
    path = self._folder / MANIFEST
    there = read_json(path)
    for field, value in self._head.items():
      _same(path, field, there.get(field), value)
    with understood(path):
      shards = _shards(there)
    for name, records, sha256 in shards:
      for record in _read(self._folder / name, records, sha256):
        self._is_new(record[_HEADER.itemsize :])
    return there['shards']


def _same(path: pathlib.Path, field: str, there: Any, here: Any) -> None:
  """Refuses to go on with data that was made in another way."""
  if isinstance(there, dict) and isinstance(here, dict):
    for key in sorted(there.keys() | here.keys()):
      _same(path, f'{field}.{key}', there.get(key), here.get(key))
  elif there != here:
    raise InputError(
      f'{path}: data with {field} = {there!r} lies there, not {here!r}; '
      'choose another folder'
    )
