"""What a run logged, kept on disk while it goes on, for its result file."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from spinejax.errors import InputError
from spinejax.report import results


class History:
  """Rows of numbers, a JSON line each, each with its `step`.

  A killed run loses at most the row it was writing.
  """

  def __init__(self, path: str | pathlib.Path, goes_on_at: int = 0):
    """Opens a file, made if need be.

    Args:
      goes_on_at: first step of a run that goes on; what is there of it and
        later steps is dropped, for it comes again.

    Raises:
      InputError: what is there is no such file.
    """
    self._path = pathlib.Path(path)
    kept = [row for row in self._there() if row['step'] < goes_on_at]
    lines = ''.join(json.dumps(row) + '\n' for row in kept)
    results.atomic_write(self._path, lines.encode())

  def add(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds a row; it is on disk afterwards."""
    row = {'step': step} | {k: float(v) for k, v in values.items()}
    with self._path.open('a') as file:
      file.write(json.dumps(row) + '\n')

  def rows(self) -> list[dict[str, Any]]:
    """All rows, as they were added."""
    return self._there()

  def _there(self) -> list[dict[str, Any]]:
    if not self._path.exists():
      return []
    try:
      *lines, cut = self._path.read_bytes().split(b'\n')
    except OSError as error:
      raise InputError(f'{self._path}: {error.strerror}') from None
    del cut  # of a row that was being written; empty after a whole one
    return [self._row(i, line) for i, line in enumerate(lines, 1)]

  def _row(self, number: int, line: bytes) -> dict[str, Any]:
    try:
      row = json.loads(line)
    except ValueError:  # of its bytes, too
      row = None
    if not isinstance(row, dict) or not isinstance(row.get('step'), int):
      raise InputError(
        f'{self._path}:{number}: damaged; delete the file to go on without '
        'what was logged so far, or use another place to write to'
      )
    return row
