"""The operating map: where speculation pays, over load and context."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib import patches, ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spinejax.report import canvas, results

# Green, blue and orange of the palette, and grey: also told apart without
# colour, by their markers.
_COLOURS = {
  'both': '#009e73', 'time only': '#56b4e9', 'energy only': '#e69f00',
  'neither': '#b5b5b5',
}  # fmt: skip
_MARKERS = {'both': 'o', 'time only': '^', 'energy only': 's', 'neither': 'X'}
_TINT, _FULL = 0.45, '#c8c8c8'
# Shares of energy saved at which lines are drawn.
_LEVELS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75)


@dataclasses.dataclass(frozen=True)
class Point:
  """A measured place, and which region it lies in."""

  batch: float
  context: float
  region: str


@dataclasses.dataclass(frozen=True)
class Panel:
  """One machine at one acceptance; X batches, Y contexts.

  Attributes:
    batch_X, context_Y: the grid.
    time_YX, energy_YX: shares of a plain token's that are saved.
    fits_YX: where the caches fit, or None: not asked.
    points: what was measured.
  """

  batch_X: np.ndarray
  context_Y: np.ndarray
  time_YX: np.ndarray
  energy_YX: np.ndarray
  fits_YX: np.ndarray | None = None
  points: Sequence[Point] = ()


def operating_map(
  panels: Sequence[tuple[str, Sequence[Panel]]],
  columns: Sequence[str],
  *,
  title: str,
  notes: Sequence[str],
  label: str,
) -> Figure:
  """Draws regions of time and energy saved: machines down, acceptance across.

  Args:
    panels: a row's name, and its panels, one a column.
    columns: names of the columns.
    title: what was run.
    notes: lines below the legend.
    label: what the numbers are worth, one of `results.LABELS`.

  Returns:
    A figure 10 inches wide at 150 dots an inch.

  Raises:
    ValueError: an unknown label, or a row of another number of panels.
  """
  if label not in results.LABELS:
    known = ', '.join(results.LABELS)
    raise ValueError(f'label: {label!r} is not one of {known}')
  for name, some in panels:
    if len(some) != len(columns):
      raise ValueError(
        f'{name}: {len(some)} panels, expected {len(columns)}: one a column'
      )
  below = _below(notes)
  height = 0.45 + 2.25 * len(panels) + below
  figure = Figure(figsize=(10, height), dpi=150, layout='constrained')
  FigureCanvasAgg(figure)
  figure.get_layout_engine().set(w_pad=0.05, h_pad=0.06, wspace=0.02)
  top, middle, bottom = figure.subfigures(
    3, 1, height_ratios=(0.4, 2.25 * len(panels), below)
  )
  top.text(
    0.008, 0.62, title, fontsize=13, fontweight='bold', color=canvas.INK,
    va='center',
  )  # fmt: skip
  top.text(
    0.992, 0.62, label, fontsize=9, color='#777777', va='center', ha='right'
  )
  axes_RC = middle.subplots(
    len(panels), len(columns), sharex=True, sharey=True, squeeze=False
  )
  for r, (name, some) in enumerate(panels):
    for c, panel in enumerate(some):
      axes = axes_RC[r, c]
      _draw(axes, panel)
      if r == 0:
        axes.set_title(columns[c], fontsize=10, color=canvas.INK, pad=6)
      if r == len(panels) - 1:
        axes.set_xlabel('requests at once', fontsize=9, color=canvas.INK)
    axes_RC[r, 0].set_ylabel(
      f'{name}\n\ncontext, tokens', fontsize=9, color=canvas.INK
    )
  _legend(bottom, panels, notes)
  return figure


def _below(notes: Sequence[str]) -> float:
  """Inches below the panels."""
  return 0.5 + 0.17 * len(notes)


def _draw(axes: Axes, panel: Panel) -> None:
  x, y = np.log2(panel.batch_X), np.log2(panel.context_Y)
  for region, colour in _COLOURS.items():
    inside_YX = _inside(region, panel.time_YX > 0, panel.energy_YX > 0)
    if inside_YX.any():
      # Signed distances give smooth borders: what is least of the two savings,
      # each with the sign that the region asks for.
      depth_YX = np.minimum(
        *(
          saved_YX if wanted else -saved_YX
          for saved_YX, wanted in zip(
            (panel.time_YX, panel.energy_YX), _SIGNS[region], strict=True
          )
        )
      )
      axes.contourf(
        x, y, depth_YX, levels=(0, 1e9), colors=[colour], alpha=_TINT
      )
  levels = [
    one
    for one in _LEVELS
    if panel.energy_YX.min() < one < panel.energy_YX.max()
  ]
  if levels:
    lines = axes.contour(
      x, y, panel.energy_YX, levels=levels, colors=canvas.INK,
      linewidths=[1.5 if one == 0 else 0.6 for one in levels],
      linestyles='solid',
    )  # fmt: skip
    axes.clabel(
      lines, [one for one in levels if one], fontsize=7,
      fmt=lambda share: f'{100 * share:+.0f} %',
    )  # fmt: skip
  if panel.fits_YX is not None and not panel.fits_YX.all():
    axes.contourf(
      x, y, panel.fits_YX.astype(float), levels=(-1, 0.5), colors=['white']
    )  # fmt: skip
    full = axes.contourf(
      x, y, panel.fits_YX.astype(float), levels=(-1, 0.5), colors='none',
      hatches=['////'],
    )  # fmt: skip
    full.set_edgecolor(_FULL)
    full.set_linewidth(0)
  for region in _COLOURS:
    some = [one for one in panel.points if one.region == region]
    axes.scatter(
      np.log2([one.batch for one in some]),
      np.log2([one.context for one in some]),
      s=30, marker=_MARKERS[region], color=_COLOURS[region],
      edgecolors=canvas.INK, linewidths=0.7, zorder=4, clip_on=False,
    )  # fmt: skip
  axes.set_xlim(x[0], x[-1])
  axes.set_ylim(y[0], y[-1])
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_locator(ticker.MultipleLocator(2))
    axis.set_major_formatter(ticker.FuncFormatter(_power))
  axes.tick_params(colors=canvas.INK, labelsize=8, length=2)
  for spine in axes.spines.values():
    spine.set_color('#999999')


_SIGNS = {
  'both': (True, True), 'time only': (True, False),
  'energy only': (False, True), 'neither': (False, False),
}  # fmt: skip


def _inside(region: str, time_YX, energy_YX) -> np.ndarray:
  quick, thrifty = _SIGNS[region]
  return (time_YX == quick) & (energy_YX == thrifty)


def _power(exponent: float, _) -> str:
  number = round(2**exponent)
  return f'{number // 1024}K' if number >= 1024 else str(number)


def _legend(bottom, panels, notes: Sequence[str]) -> None:
  every = [panel for _, some in panels for panel in some]
  handles = [
    patches.Patch(
      facecolor=colour, alpha=_TINT, edgecolor='none',
      label={'both': 'saves time and energy', 'neither': 'saves neither'}.get(
        region, f'saves {region}'
      ),
    )
    for region, colour in _COLOURS.items()
    if any(
      _inside(region, panel.time_YX > 0, panel.energy_YX > 0).any()
      or any(point.region == region for point in panel.points)
      for panel in every
    )
  ]  # fmt: skip
  handles.append(
    Line2D([], [], color=canvas.INK, linewidth=1.5,
           label='break-even in energy; thin: share saved')
  )  # fmt: skip
  if any(panel.points for panel in every):
    handles.append(
      Line2D([], [], color='white', marker='o', markersize=5.5,
             markeredgecolor=canvas.INK, markeredgewidth=0.8,
             linestyle='none', label='a measured place, in its colour')
    )  # fmt: skip
  if any(p.fits_YX is not None and not p.fits_YX.all() for p in every):
    handles.append(
      patches.Patch(facecolor='white', hatch='////', edgecolor=_FULL,
                    linewidth=0, label='does not fit')
    )  # fmt: skip
  bottom.legend(
    handles=handles, loc='upper center', frameon=False, fontsize=8,
    ncols=len(handles) if len(handles) < 6 else 4, labelcolor=canvas.INK,
    handlelength=1.4, columnspacing=1.4, bbox_to_anchor=(0.5, 1.05),
  )  # fmt: skip
  for i, line in enumerate(notes):
    bottom.text(
      0.5, (0.1 + 0.17 * (len(notes) - 1 - i)) / _below(notes), line,
      fontsize=8, color='#666666', ha='center', va='center',
    )  # fmt: skip
