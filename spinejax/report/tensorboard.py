"""Writes TensorBoard event files, without TensorFlow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorboardX
from tensorboardX.summary import hparams


class Writer:
  """Writes one run; a context manager that flushes when it closes.

  Steps are whatever the caller counts in: optimiser steps in training, tokens
  or prompts in decoding.
  """

  def __init__(
    self,
    folder: str | os.PathLike[str],
    flush_seconds: int = 20,
    goes_on_at: int | None = None,
  ):
    """Opens `folder` for new event files, making it if needed.

    Args:
      flush_seconds: how long events are kept back at most.
      goes_on_at: first step of a run that goes on; what is there of it and
        later steps is not shown any more.
    """
    self._goes_on_at = goes_on_at
    self._folder = os.fspath(folder)
    self._flush_seconds = flush_seconds
    self._events: tensorboardX.SummaryWriter | None = self._open()

  def __enter__(self) -> Writer:
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def scalars(self, step: int, values: Mapping[str, Any]) -> None:
    """Adds one point to each curve; values are numbers or 0-d arrays.

    Tags with a slash (`loss/ce`) share a section of the page.
    """
    for tag, value in values.items():
      self._opened().add_scalar(tag, float(value), step)

  def image(self, step: int, tag: str, image_HWC: np.ndarray) -> None:
    """Adds a uint8 [height, width, 3] image, as `figures.to_image` gives."""
    if image_HWC.dtype != np.uint8 or image_HWC.shape[2:] != (3,):
      got = f'{image_HWC.dtype} {list(image_HWC.shape)}'
      raise ValueError(f'{tag}: expected a uint8 [H, W, 3] image, got {got}')
    self._opened().add_image(tag, image_HWC, step, dataformats='HWC')

  def text(self, step: int, tag: str, text: str) -> None:
    """Adds Markdown text."""
    self._opened().add_text(tag, text, step)

  def config(self, config: Mapping[str, Any]) -> None:
    """Adds a config as a table, nested keys joined by dots."""
    rows = []
    for key, value in _leaves('', config):
      text = json.dumps(value, default=str).replace('|', '\\|')
      rows.append(f'| {key} | `{text}` |')
    head = ['| field | value |', '| --- | --- |']
    self._opened().add_text('config', '\n'.join(head + rows), 0)

  def hparams(self, config: Mapping[str, Any], tags: Iterable[str]) -> None:
    """Adds the run to the table of hyperparameters.

    Args:
      config: its scalars are the hyperparameters, nested keys joined by dots;
        all else is text.
      tags: of the curves whose last values are the metrics.
    """
    values = {
      key: value if isinstance(value, bool | int | float | str) else str(value)
      for key, value in _leaves('', config)
    }
    # Not add_hparams: that splits the run in two.
    for summary in hparams(values, dict.fromkeys(tags, 0.0)):
      self._opened().file_writer.add_summary(summary)

  def flush(self) -> None:
    """Puts everything added so far on disk."""
    # tensorboardX's own flush passes by what its thread has still in its
    # queue; only closing waits for that.
    self._opened().close()
    self._events = self._open()

  def close(self) -> None:
    """Flushes and closes; adding anything afterwards is a ValueError."""
    if self._events is not None:
      self._events.close()
      self._events = None

  def _open(self) -> tensorboardX.SummaryWriter:
    # tensorboardX names files by the second and overwrites: a run resumed, or
    # flushed twice, within one second would lose events.
    suffix = f'.{os.getpid()}.{time.time_ns()}'
    return tensorboardX.SummaryWriter(
      self._folder, flush_secs=self._flush_seconds, filename_suffix=suffix,
      purge_step=self._goes_on_at,
    )  # fmt: skip

  def _opened(self) -> tensorboardX.SummaryWriter:
    # Of itself tensorboardX would open a new file.
    if self._events is None:
      raise ValueError(f'{self._folder}: the writer is closed')
    return self._events


def _leaves(prefix: str, config: Mapping[str, Any]) -> list[tuple[str, Any]]:
  flat = []
  for key, value in config.items():
    if hasattr(value, 'items'):  # a ConfigDict is not a Mapping
      flat += _leaves(f'{prefix}{key}.', value)
    else:
      flat.append((f'{prefix}{key}', value))
  return flat
