"""Figures as plain objects: no windows, no global plotting state."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from spinejax.report import canvas, results


def acceptance_by_position(
  curves: Mapping[str, Sequence[float | None]],
  *,
  title: str,
  label: str,
  conditional: bool = False,
) -> Figure:
  """Draws how acceptance falls with the position in the draft.

  Args:
    curves: a drafter's name to P(slot j accepted) for j = 1..S, as in
      `stats.Acceptance`; None leaves a gap. Lengths may differ.
    title: what was run: target, data, temperature.
    label: what the numbers are worth, one of `results.LABELS`; printed in the
      figure.
    conditional: the curves are P(slot j accepted | slot j - 1 accepted).

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no curves, an empty curve, a value that is no probability, or
      an unknown label.
  """
  if not curves:
    raise ValueError('curves: expected at least one, got none')
  figure, axes = canvas.new(label)
  for i, (name, curve) in enumerate(curves.items()):
    percent = 100 * _probabilities(name, curve)
    canvas.line(axes, i, name, np.arange(1, len(percent) + 1), percent)
  longest = max(len(curve) for curve in curves.values())
  axes.set_xlim(0.6, longest + 0.4)
  axes.set_ylim(0, 100)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=16, integer=True))
  axes.yaxis.set_major_formatter(ticker.PercentFormatter(decimals=0))
  axes.set_xlabel('position in the draft', color=canvas.INK)
  axes.set_ylabel(
    'accepted, of rounds that got there'
    if conditional
    else 'accepted, of all rounds',
    color=canvas.INK,
  )
  canvas.finish(axes, title, label)
  return figure


def against_tokens(
  curves: Mapping[str, Sequence[tuple[float, float]]],
  *,
  title: str,
  label: str,
  unit: str,
) -> Figure:
  """Draws what training comes to against the tokens it took.

  Args:
    curves: a name to points (training tokens, value), in order.
    title, label: see `acceptance_by_position`.
    unit: of the values.

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no curves, a curve without points, or an unknown label.
  """
  if not curves or not all(curves.values()):
    raise ValueError('curves: expected at least one, each with a point')
  figure, axes = canvas.new(label)
  for i, (name, points) in enumerate(curves.items()):
    tokens, values = np.array(points, float).T
    canvas.line(axes, i, name, tokens / 1e6, values)
  axes.set_xlim(left=0)
  axes.set_xlabel('million training tokens', color=canvas.INK)
  axes.set_ylabel(unit, color=canvas.INK)
  canvas.finish(axes, title, label)
  return figure


def by_set(
  bars: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]],
  *,
  title: str,
  label: str,
  unit: str,
) -> Figure:
  """Draws a group of bars a set of prompts, with their intervals.

  Args:
    bars: a run's name to sets of prompts to (value, low, high), the last two
      None where there is no interval. A run may lack sets.
    title, label: see `acceptance_by_position`.
    unit: of the values.

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no bars, or an unknown label.
  """
  if not bars:
    raise ValueError('bars: expected at least one run, got none')
  figure, axes = canvas.new(label)
  sets = list(dict.fromkeys(one for values in bars.values() for one in values))
  width = 0.8 / len(bars)
  for i, (name, values) in enumerate(bars.items()):
    there = [j for j, one in enumerate(sets) if one in values]
    value, low, high = (
      np.array([values[sets[j]] for j in there], float).reshape(-1, 3).T
    )
    axes.bar(
      np.array(there) + (i - (len(bars) - 1) / 2) * width,
      value,
      0.9 * width,
      yerr=[value - low, high - value],
      label=name,
      color=canvas.COLOURS[i % len(canvas.COLOURS)],
      # Past the end of the palette hatching tells the turns.
      hatch=canvas.HATCHES[i // len(canvas.COLOURS) % len(canvas.HATCHES)],
      error_kw={'ecolor': canvas.INK, 'elinewidth': 0.8},
      zorder=3,
    )
  axes.set_xticks(range(len(sets)), sets)
  axes.set_ylabel(unit, color=canvas.INK)
  # Below, where it covers no bars.
  below = dict(loc='upper left', bbox_to_anchor=(0, -0.1))
  canvas.finish(axes, title, label, **below, ncols=min(len(bars), 4))
  return figure


def ratios(
  points: Mapping[str, tuple[float, float | None, float | None]],
  *,
  title: str,
  label: str,
  unit: str,
) -> Figure:
  """Draws runs as points with their intervals, the best on top.

  Args:
    points: a run's name to (value, low, high), the last two None where there is
      no interval.
    title, label: see `acceptance_by_position`.
    unit: of the values.

  Returns:
    A figure 7 inches wide and as high as its runs ask for, at 150 dots an inch.

  Raises:
    ValueError: no points, or an unknown label.
  """
  if not points:
    raise ValueError('points: expected at least one run, got none')
  figure, axes = canvas.new(label, height=1.6 + 0.24 * len(points))
  names = sorted(points, key=lambda name: points[name][0])
  value, low, high = np.array([points[name] for name in names], float).T
  axes.errorbar(
    value,
    range(len(names)),
    xerr=[value - low, high - value],
    fmt=canvas.MARKERS[0],
    color=canvas.COLOURS[0],
    ecolor=canvas.INK,
    elinewidth=1,
    markersize=5.5,
    label='value, 95 % interval',
    zorder=3,
  )
  axes.axvline(1, color='#999999', linewidth=1)
  axes.set_yticks(range(len(names)), names)
  axes.set_xlabel(unit, color=canvas.INK)
  canvas.finish(axes, title, label, loc='lower right')
  axes.grid(axis='x', color=canvas.GRID, linewidth=0.8)
  return figure


def predicted_against(
  points: Mapping[str, tuple[Sequence[float], Sequence[float]]],
  *,
  title: str,
  label: str,
  unit: str,
) -> Figure:
  """Draws what a law predicts against what it was told, on log axes.

  Args:
    points: a group's name to its values and those predicted.
    title, label: see `acceptance_by_position`.
    unit: of both.

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no points, or an unknown label.
  """
  if not points:
    raise ValueError('points: expected at least one group, got none')
  figure, axes = canvas.new(label)
  for i, (name, (measured, predicted)) in enumerate(points.items()):
    axes.plot(
      measured,
      predicted,
      label=name,
      color=canvas.COLOURS[i % len(canvas.COLOURS)],
      marker=canvas.MARKERS[i // len(canvas.COLOURS) % len(canvas.MARKERS)],
      linestyle='none',
      markersize=3.5,
      alpha=0.8,
      zorder=3,
    )
  ends = [
    end([end(x) for pair in points.values() for x in pair])
    for end in (min, max)
  ]
  axes.plot(ends, ends, color=canvas.INK, linewidth=0.8, zorder=2)
  axes.set_xscale('log')
  axes.set_yscale('log')
  axes.set_xlabel(f'{label}, {unit}', color=canvas.INK)
  axes.set_ylabel(f'predicted, {unit}', color=canvas.INK)
  canvas.finish(axes, title, label, loc='upper left', ncols=2)
  return figure


def stacked(
  parts: Mapping[str, Mapping[str, float]],
  *,
  title: str,
  label: str,
  unit: str,
) -> Figure:
  """Draws bars that are made of parts.

  Args:
    parts: a bar's name to its parts, alike for all.
    title, label: see `acceptance_by_position`.
    unit: of the parts.

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no bars, or an unknown label.
  """
  if not parts:
    raise ValueError('parts: expected at least one bar, got none')
  figure, axes = canvas.new(label)
  names = list(next(iter(parts.values())))
  left = np.zeros(len(parts))
  for i, name in enumerate(names):
    value = np.array([bar[name] for bar in parts.values()])
    axes.barh(
      range(len(parts)),
      value,
      left=left,
      label=name,
      color=canvas.COLOURS[i % len(canvas.COLOURS)],
      hatch=canvas.HATCHES[i // len(canvas.COLOURS) % len(canvas.HATCHES)],
      zorder=3,
    )
    left += value
  axes.set_yticks(range(len(parts)), list(parts))
  axes.invert_yaxis()
  axes.set_xlabel(unit, color=canvas.INK)
  below = dict(loc='upper left', bbox_to_anchor=(0, -0.15))
  canvas.finish(axes, title, label, **below, ncols=min(len(names), 4))
  axes.grid(axis='y', visible=False)
  axes.grid(axis='x', color=canvas.GRID, linewidth=0.8)
  return figure


def by_load(
  curves: Mapping[str, Mapping[float, float]],
  *,
  title: str,
  label: str,
  load: str,
  unit: str,
) -> Figure:
  """Draws what a load gives, from little to much, both axes logarithmic.

  Args:
    curves: a run's name to loads to values.
    title, label: see `acceptance_by_position`.
    load, unit: what the axes are.

  Returns:
    A figure of 7 x 4.2 inches at 150 dots an inch.

  Raises:
    ValueError: no curves, or an unknown label.
  """
  if not curves:
    raise ValueError('curves: expected at least one, got none')
  figure, axes = canvas.new(label)
  for i, (name, curve) in enumerate(curves.items()):
    canvas.line(axes, i, name, list(curve), list(curve.values()))
  axes.set_xscale('log', base=2)
  axes.set_yscale('log', base=2)
  axes.set_xticks(sorted({x for curve in curves.values() for x in curve}))
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axis.set_minor_locator(ticker.NullLocator())
  axes.set_xlabel(load, color=canvas.INK)
  axes.set_ylabel(unit, color=canvas.INK)
  canvas.finish(axes, title, label, loc='upper left')
  return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure as PNG, whole or not at all."""
  file = io.BytesIO()
  # Without the writer's version, so that the same figure is the same file.
  figure.savefig(file, format='png', metadata={'Software': None})
  results.atomic_write(path, file.getvalue())


def to_image(figure: Figure) -> np.ndarray:
  """Renders a figure as uint8 [height, width, 3], for TensorBoard."""
  drawn = FigureCanvasAgg(figure)
  drawn.draw()
  return np.asarray(drawn.buffer_rgba())[..., :3].copy()


def _probabilities(name: str, curve: Sequence[float | None]) -> np.ndarray:
  values = np.asarray([np.nan if p is None else p for p in curve], float)
  if not values.size:
    raise ValueError(f'{name}: expected at least one position, got none')
  if (bad := (values < 0) | (values > 1)).any():
    i = bad.argmax()
    raise ValueError(
      f'{name}: {values[i]:g} at position {i + 1} is not a probability'
    )
  return values
