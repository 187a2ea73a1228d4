"""What all figures have in common: size, colours, frame and legend."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from spinejax.report import results

_DPI = 150
# Okabe and Ito's palette, which colour-blind readers tell apart, without its
# yellow and black; markers repeat the distinction for print.
COLOURS = (
  '#0072b2',
  '#d55e00',
  '#009e73',
  '#cc79a7',
  '#e69f00',
  '#56b4e9',
)
HATCHES = ('', '//', '..')
MARKERS = ('o', 's', '^', 'D', 'v', '<')
INK = '#333333'
GRID = '#e3e3e3'


def new(label: str, height: float = 4.2) -> tuple[Figure, Axes]:
  """An empty figure, 7 inches wide, for numbers of that worth.

  Raises:
    ValueError: `label` is none of `results.LABELS`.
  """
  if label not in results.LABELS:
    known = ', '.join(results.LABELS)
    raise ValueError(f'label: {label!r} is not one of {known}')
  figure = Figure(figsize=(7, height), dpi=_DPI, layout='constrained')
  FigureCanvasAgg(figure)
  return figure, figure.add_subplot()


def line(axes: Axes, i: int, name: str, x, y) -> None:
  """The i-th curve of a figure."""
  axes.plot(
    x,
    y,
    label=name,
    color=COLOURS[i % len(COLOURS)],
    # Past the end of the palette a dash tells the second turn.
    linestyle='-' if i < len(COLOURS) else '--',
    marker=MARKERS[i % len(MARKERS)],
    markersize=5.5,
    markeredgecolor='white',
    markeredgewidth=0.8,
    linewidth=1.8,
    clip_on=False,
    zorder=3,
  )


def finish(axes: Axes, title: str, label: str, **where) -> None:
  """What all figures have: the title, a quiet frame, and the legend."""
  axes.set_title(
    title,
    loc='left',
    pad=12,
    wrap=True,
    fontsize=11,
    fontweight='bold',
    color=INK,
  )
  axes.grid(axis='y', color=GRID, linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(colors=INK, labelsize=9, length=0)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.spines['bottom'].set_color('#999999')
  legend = axes.legend(
    title=label,
    alignment='left',
    frameon=False,
    labelcolor=INK,
    fontsize=9.5,
    title_fontsize=9,
    **where,
  )
  legend.get_title().set_color('#777777')
