"""What TensorBoard shows of a run, in one layout for all binaries.

    <results>/<experiment>/<name>.json, .png   the result file and its figures
    <results>/<experiment>/<name>/             config and figures
    <results>/<experiment>/<name>/<drafter>/   its numbers, hyperparameters,
                                               rounds and profile

A drafter is a run of TensorBoard's, so drafters of one binary, and of several
runs of it, are curves of one plot and lines of one table of hyperparameters.
"""

from __future__ import annotations

import collections
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from spinejax.report import figures as drawing
from spinejax.report.tensorboard import Writer

# What rows are told apart by, in the order of a tag, and what is shown of them.
_NAMES = (
  'target', 'library', 'dataset', 'temperature', 'batch', 'context',
)  # fmt: skip
_VALUES = (
  'tokens_per_round', 'tokens_per_round_nonrepetitive', 'tokens_per_s',
  'speedup_vs_plain', 'exact', 'ties', 'wrong', 'time_ms', 'joules_per_token',
)  # fmt: skip
_RUN = ('run', 'source', 'drafter')
_POSITIONS = 'acceptance_by_position'


def folder_of(root: str | pathlib.Path, run: str) -> pathlib.Path:
  """Where a drafter of a run has its events."""
  return pathlib.Path(root) / re.sub(r'[^A-Za-z0-9._-]+', '_', run).strip('_')


def points_of(
  rows: Sequence[Mapping[str, Any]],
) -> dict[str, list[tuple[int, dict[str, float]]]]:
  """Points of curves, by run, from metric rows: see `log`.

  Rows of one run are told apart by what differs among all rows. Acceptance by
  position is a curve over positions.
  """
  differ = [
    key
    for key in _NAMES
    if len({str(row[key]) for row in rows if key in row}) > 1
  ]
  points: dict[str, list[tuple[int, dict[str, float]]]] = {}
  for row in rows:
    run = next((str(row[key]) for key in _RUN if key in row), '')
    words = [_word(key, row[key]) for key in differ if key in row]
    name = '_'.join(words) or str(row.get('dataset', 'all'))
    values = {
      f'{name}/{key}': row[key] for key in _VALUES if row.get(key) is not None
    }
    if values:
      points.setdefault(run, []).append((0, values))
    for j, share in enumerate(row.get(_POSITIONS) or (), 1):
      if share is not None:
        points[run].append((j, {f'{name}/{_POSITIONS}': share}))
  return points


def _word(key: str, value: Any) -> str:
  """A part of a tag: numbers say of what they are."""
  if isinstance(value, str):
    return value.replace('/', '_')
  return f'{key}{value:g}' if isinstance(value, int | float) else f'{value}'


def log(
  folder: str | pathlib.Path,
  *,
  config: Mapping[str, Any],
  points: Mapping[str, Sequence[tuple[int, Mapping[str, float]]]],
  figures: Mapping[str, Figure] | None = None,
) -> None:
  """Writes a run that has ended, in the place of an earlier one of its name.

  Args:
    folder: `<results>/<experiment>/<name>`.
    config: of the binary, as a table and as hyperparameters.
    points: (step, values by tag) of each drafter; '' for what is of none.
    figures: by name.
  """
  folder = pathlib.Path(folder)
  for old in sorted(folder.rglob('events.out.tfevents.*')):
    old.unlink()
  with Writer(folder) as writer:
    writer.config(config)
    for name, figure in (figures or {}).items():
      writer.image(0, name, drawing.to_image(figure))
  for run, steps in points.items():
    with Writer(folder_of(folder, run)) as writer:
      for step, values in steps:
        writer.scalars(step, values)
      # Of a curve the last point alone says little.
      times = collections.Counter(tag for _, values in steps for tag in values)
      tags = [tag for tag, count in times.items() if count == 1]
      writer.hparams({**config, 'drafter': run} if run else config, tags)
