"""The two files of a checkpoint, config.json and model.safetensors, on disk."""

import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from spinejax.errors import InputError
from spinejax.target.parse import read_json

Path = str | os.PathLike[str]
WEIGHTS, CONFIG = 'model.safetensors', 'config.json'
_INDEX, _DRAFT = WEIGHTS + '.index.json', '.writing-'


def read_settings(path: Path) -> dict[str, Any]:
  """config.json of a directory."""
  path = pathlib.Path(path)
  if not path.is_dir():
    raise InputError(f'{path}: no such directory')
  return read_json(path / CONFIG)


def sha256_of(file: pathlib.Path) -> str:
  """SHA-256 of a file's bytes, 64 hex digits."""
  with file.open('rb') as opened:
    return hashlib.file_digest(opened, 'sha256').hexdigest()


def check_destination(path: Path) -> None:
  """Refuses a directory that a checkpoint could not be written to.

  Changes nothing; call it before a training that ends in writing there.

  Raises:
    InputError: `path` or a parent is a file or not writable, it holds a
      sharded checkpoint, or one of the two files is a directory.
  """
  if not isinstance(path, str | os.PathLike) or not os.fspath(path):
    raise InputError(f'path = {path!r}, expected a directory')
  path = pathlib.Path(path)
  try:
    there = path
    while not os.path.lexists(there):
      there = there.parent
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise InputError(f'{path}: {reason}') from None
  if not there.is_dir():
    raise InputError(f'{there}: not a directory; choose another path')
  if not os.access(there, os.W_OK | os.X_OK):
    raise InputError(f'{there}: not writable; choose another path')
  if os.path.lexists(path / _INDEX):
    raise InputError(f'{path}: holds a sharded checkpoint; choose another path')
  for name in (WEIGHTS, CONFIG):
    if (path / name).is_dir():
      raise InputError(
        f'{path / name}: is a directory, expected a file; choose another path'
      )


def write_files(
  path: Path,
  settings: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
  sign: str | None = None,
) -> None:
  """Writes config.json and model.safetensors, both or neither.

  Both are complete on disk before the first takes its place, the weights: a
  directory without config.json is not a checkpoint yet.

  Args:
    sign: object of `settings` that gets `weights_sha256`, the hash of
      model.safetensors.
  """
  check_destination(path)
  path = pathlib.Path(path)
  text = _json(path, settings)
  try:
    path.mkdir(parents=True, exist_ok=True)
    for left in path.glob(_DRAFT + '*'):  # of runs that were killed
      shutil.rmtree(left, ignore_errors=True)
    # Inside `path`: a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=path, prefix=_DRAFT) as draft:
      draft = pathlib.Path(draft)
      plain = {k: np.asarray(v, order='C') for k, v in tensors.items()}
      save_file(plain, draft / WEIGHTS, {'format': 'pt'})
      if sign is not None:
        signed = {'weights_sha256': sha256_of(draft / WEIGHTS)}
        text = _json(path, {**settings, sign: settings[sign] | signed})
      (draft / CONFIG).write_text(text, encoding='utf-8')
      # safetensors makes its file private; this one follows the umask.
      shutil.copymode(draft / CONFIG, draft / WEIGHTS)
      for name in (WEIGHTS, CONFIG):
        os.replace(draft / name, path / name)
  except OSError as error:
    raise InputError(f'{path}: {error.strerror or error}') from None
  except SafetensorError as error:
    raise InputError(f'{path}/{WEIGHTS}: {error}') from None


def _json(path: pathlib.Path, settings: Mapping[str, Any]) -> str:
  try:
    return json.dumps(settings, indent=2, allow_nan=False) + '\n'
  except (RecursionError, TypeError, ValueError) as error:
    raise InputError(f'{path.name}/{CONFIG}: {error}') from None
