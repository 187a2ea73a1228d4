"""The data file of one array, which `train_drafter` reads until it takes
batches from `train.input`; this module then goes, with what `self_data`
imports from it."""

import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spinejax.drafters.files import sha256_of
from spinejax.errors import InputError
from spinejax.report.results import atomic_write, portable
from spinejax.target.hf_dir import read_json
from spinejax.train.shards import Sequences


def manifest_path(path: pathlib.Path) -> pathlib.Path:
  """The description beside a data file: who wrote it, and how."""
  return path.with_name('manifest.json')


def load_manifest(path: pathlib.Path) -> dict[str, Any]:
  """The description of the data file `path`; has `target` and `head_hash`.

  Raises:
    InputError: it is missing or damaged.
  """
  manifest = read_json(manifest_path(path))
  for field in ('target', 'head_hash', 'sha256'):
    if field not in manifest:
      raise InputError(f'{manifest_path(path)}: {field!r} is missing')
  if path.is_file() and sha256_of(path) != manifest['sha256']:
    raise InputError(
      f'{manifest_path(path)} does not describe {path.name} (an interrupted '
      'write?); write the data again'
    )
  return manifest


def save(
  data: Sequences, path: pathlib.Path, manifest: Mapping[str, Any]
) -> None:
  """Writes sequences as one compressed file, then their description.

  Each is replaced in one step; the description names the file's hash, so that
  an interruption between the two does not go unnoticed.
  """
  buffer = io.BytesIO()
  np.savez_compressed(
    buffer,
    tokens=data.tokens_NT.astype(
      np.uint32 if data.tokens_NT.max() > 65535 else np.uint16
    ),
    answer=data.answer_N,
    length=data.length_N,
  )
  atomic_write(path, buffer.getvalue())
  whole = dict(portable(manifest)) | {'sha256': sha256_of(path)}
  atomic_write(manifest_path(path), json.dumps(whole, indent=2).encode())


def load(path: pathlib.Path) -> Sequences:
  """Sequences that `save` wrote.

  Raises:
    InputError: the file is missing or damaged.
  """
  try:
    with np.load(path) as f:
      data = Sequences(f['tokens'].astype(np.int32), f['answer'], f['length'])
  except FileNotFoundError:
    raise InputError(f'{path}: no such file; write it first') from None
  except Exception as error:  # zipfile and numpy each raise their own
    raise InputError(f'{path}: not a data file ({error})') from None
  N, *rest = data.tokens_NT.shape or (0,)
  fits = N and len(rest) == 1 and data.answer_N.shape == (N,)
  if not fits or data.length_N.shape != (N,) or data.length_N.max() > rest[0]:
    raise InputError(
      f'{path}: not a data file (tokens {data.tokens_NT.shape}, answer '
      f'{data.answer_N.shape}, length {data.length_N.shape})'
    )
  return data
