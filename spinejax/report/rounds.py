"""Rounds made visible: coloured text, a timeline, and what a block holds."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from spinejax.report import canvas

# Accepted, the target's own, rejected: in figures and pages, and in Markdown,
# which has no colours.
_FILL = {'accepted': '#bfe3d5', 'own': '#bcd9ef', 'rejected': '#f6d3bf'}
_SQUARE = {'accepted': '🟩', 'own': '🟦', 'rejected': '🟥'}
_SAYS = {
  'accepted': 'proposed and accepted',
  'own': "the target's own token",
  'rejected': 'proposed and rejected',
}
_MONO = dict(family='monospace', parse_math=False, color=canvas.INK)


def shown(tokenizer) -> Callable[[int], str]:
  """How a token is shown: · is a space, and line ends are spelt out."""

  def text(token: int) -> str:
    found = tokenizer.decode([int(token)], keep_special=True)
    return repr(found)[1:-1].replace(' ', '·')

  return text


@dataclasses.dataclass(frozen=True)
class Line:
  """One round as text.

  Attributes:
    accepted, rejected: of the proposals; accepted ones past a stop token or
      the cap are in neither.
    own: what the target added; None where the answer was cut before it.
  """

  accepted: tuple[str, ...]
  own: str | None
  rejected: tuple[str, ...]

  @classmethod
  def of(cls, seen, text: Callable[[int], str]) -> Line:
    """A round as `decode.trace` saw it."""
    kept, own = seen.emitted[: seen.accepted], seen.emitted[seen.accepted :]
    left = [t for t in seen.proposed_S[seen.accepted :] if t >= 0]
    return cls(
      tuple(map(text, kept)),
      text(own[0]) if len(own) else None,
      tuple(map(text, left)),
    )

  def parts(self) -> list[tuple[str, str]]:
    """(kind, token) from left to right."""
    own = [] if self.own is None else [('own', self.own)]
    return [
      *(('accepted', t) for t in self.accepted),
      *own,
      *(('rejected', t) for t in self.rejected),
    ]


def to_html(lines: Sequence[Line], rejected: bool = True) -> str:
  """Coloured text for a notebook, a round a line; the newest at the bottom.

  Args:
    rejected: show what was proposed in vain, too.
  """
  rows = []
  for line in lines:
    spans = [
      f'<span style="background:{_FILL[kind]};padding:0 2px;'
      f'margin:1px;border-radius:3px;{_struck(kind)}">'
      f'{html.escape(token)}</span>'
      for kind, token in line.parts()
      if rejected or kind != 'rejected'
    ]
    rows.append(f'<div>{"".join(spans)}</div>')
  legend = ' '.join(
    f'<span style="background:{_FILL[kind]};padding:0 4px">{says}</span>'
    for kind, says in _SAYS.items()
    if rejected or kind != 'rejected'
  )
  return (
    '<div style="font-family:monospace;line-height:1.7;color:#222">'
    f'{"".join(rows)}<div style="margin-top:8px">{legend}</div></div>'
  )


def _struck(kind: str) -> str:
  return 'text-decoration:line-through' if kind == 'rejected' else ''


def to_markdown(lines: Sequence[Line]) -> str:
  """Coloured acceptance for TensorBoard's text panel, a round a row.

  TensorBoard lets no colour through, so squares carry it.
  """
  rows = [
    f'| {i} | {"".join(_SQUARE[kind] for kind, _ in line.parts())} '
    f'| {_code(line.accepted)} | {_code([line.own] if line.own else [])} '
    f'| {_code(line.rejected)} |'
    for i, line in enumerate(lines, 1)
  ]
  legend = ', '.join(f'{_SQUARE[kind]} {says}' for kind, says in _SAYS.items())
  head = '| round | | accepted | own | rejected |\n|---|---|---|---|---|'
  return '\n'.join([legend, '', head, *rows])


def _code(tokens: Sequence[str]) -> str:
  text = ' '.join(tokens).replace('|', '\\|').replace('`', "'")
  return f'`{text}`' if text else ''


def timeline(lines: Sequence[Line], *, title: str, label: str) -> Figure:
  """A row a round, a box a token: what was proposed, and what came of it.

  Args:
    title, label: see `figures.acceptance_by_position`.

  Returns:
    A figure 7 inches or more wide, and as high as its rounds ask for.

  Raises:
    ValueError: no rounds, or an unknown label.
  """
  if not lines:
    raise ValueError('lines: expected at least one round, got none')
  columns = max(len(line.parts()) for line in lines)
  figure, axes = canvas.new(label, height=1.8 + 0.3 * len(lines))
  figure.set_figwidth(max(7.0, 1.5 + 0.72 * columns))
  for row, line in enumerate(lines):
    for at, (kind, token) in enumerate(line.parts()):
      _box(axes, at, row, token, _FILL[kind])
  counts = [f'{i}  +{_emitted(x)}' for i, x in enumerate(lines, 1)]
  axes.set(xlim=(0, columns), ylim=(len(lines), 0))
  axes.set_xticks(np.arange(columns) + 0.5, range(1, columns + 1))
  axes.set_yticks(np.arange(len(lines)) + 0.5, counts, family='monospace')
  axes.set_ylabel('round, tokens emitted', color=canvas.INK)
  axes.set_xlabel('position in the round', color=canvas.INK)
  _finish(axes, title)
  legend = figure.legend(
    handles=[Patch(color=_FILL[k], label=says) for k, says in _SAYS.items()],
    title=label, alignment='left', frameon=False, labelcolor=canvas.INK,
    fontsize=9, title_fontsize=9, ncols=3, loc='outside lower left',
  )  # fmt: skip
  legend.get_title().set_color('#777777')
  return figure


def _emitted(line: Line) -> int:
  return len(line.accepted) + (line.own is not None)


def _box(axes, column: int, row: int, token: str, fill) -> None:
  axes.add_patch(
    Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, color=fill, lw=0)
  )
  axes.text(
    column + 0.5, row + 0.5, _short(token), ha='center', va='center',
    fontsize=8, clip_on=True, **_MONO,
  )  # fmt: skip


def _short(token: str, most: int = 9) -> str:
  return token if len(token) <= most else token[: most - 1] + '…'


def by_layer(
  words_LS: Sequence[Sequence[str]],
  final_S: Sequence[str],
  *,
  title: str,
  label: str,
  kept: int | None = None,
) -> Figure:
  """What each layer would say at each slot; green where it stays so.

  Args:
    words_LS: tokens, a row a draft layer.
    final_S: what the drafter proposes; the last row.
    title, label: see `figures.acceptance_by_position`.
    kept: how many proposals the target accepted; they are set bold.

  Returns:
    A figure as wide as its slots and as high as its layers ask for.

  Raises:
    ValueError: a row has not one token a slot, or an unknown label.
  """
  rows = [*words_LS, final_S]
  if {len(row) for row in rows} != {len(final_S)}:
    raise ValueError(f'words: expected {len(final_S)} tokens a layer')
  figure, axes = canvas.new(label, height=1.4 + 0.34 * len(rows))
  figure.set_figwidth(1.4 + 0.76 * len(final_S))
  for at, row in enumerate(rows):
    last = at == len(rows) - 1
    for slot, token in enumerate(row):
      same = token == final_S[slot]
      fill = '#e6eef5' if last else _FILL['accepted' if same else 'rejected']
      _box(axes, slot, at, token, fill)
      if last and kept is not None and slot < kept:
        axes.texts[-1].set_weight('bold')
  names = [f'layer {i}' for i in range(1, len(rows))] + ['proposed']
  axes.set(xlim=(0, len(final_S)), ylim=(len(rows), 0))
  axes.set_xticks(np.arange(len(final_S)) + 0.5, range(1, len(final_S) + 1))
  axes.set_yticks(np.arange(len(rows)) + 0.5, names)
  note = '; bold: accepted' if kept is not None else ''
  axes.set_xlabel(
    f'slot ({label}; green: what is proposed at last{note})', color=canvas.INK
  )
  _finish(axes, title)
  return figure


def heat(
  values_LS: np.ndarray,
  *,
  title: str,
  label: str,
  unit: str,
  most: float | None = None,
) -> Figure:
  """Numbers by draft layer and slot, as colours with their values.

  Args:
    values_LS: nonnegative, a row a layer.
    title, label: see `figures.acceptance_by_position`.
    unit: of the values.
    most: where the colours end; None: at the largest value.

  Returns:
    A figure as wide as its slots and as high as its layers ask for.
  """
  values_LS = np.asarray(values_LS, float)
  layers, slots = values_LS.shape
  most = most or float(values_LS.max())
  figure, axes = canvas.new(label, height=1.6 + 0.34 * layers)
  figure.set_figwidth(max(5.0, 2.2 + 0.46 * slots))
  image = axes.imshow(values_LS, cmap='Blues', vmin=0, vmax=most, aspect='auto')
  for (row, column), value in np.ndenumerate(values_LS):
    axes.text(
      column, row, f'{value:.2f}', ha='center', va='center', fontsize=7.5,
      color='white' if value > 0.6 * most else canvas.INK,
    )  # fmt: skip
  axes.set_xticks(range(slots), range(1, slots + 1))
  axes.set_yticks(range(layers), [f'layer {i + 1}' for i in range(layers)])
  axes.set_xlabel(f'slot ({label})', color=canvas.INK)
  figure.colorbar(image, label=unit).outline.set_visible(False)
  _finish(axes, title)
  return figure


def transition(
  scores_NN: np.ndarray,
  before_N: Sequence[str],
  candidates_N: Sequence[str],
  row: int,
  *,
  title: str,
  label: str,
) -> Figure:
  """A transition table: what follows each predecessor, and the walk's row.

  Args:
    scores_NN: rows are predecessors, columns candidates.
    before_N, candidates_N: the tokens of both.
    row: the predecessor that was chosen.
    title, label: see `figures.acceptance_by_position`.

  Returns:
    A figure of 8.2 x 6.6 inches.
  """
  figure, axes = canvas.new(label, height=6.6)
  figure.set_figwidth(8.2)
  scores_NN = np.asarray(scores_NN, float)
  best_N = scores_NN.argmax(axis=1)
  behind_NN = scores_NN - scores_NN.max(axis=1, keepdims=True)
  image = axes.imshow(behind_NN, cmap='Blues', vmin=-12, vmax=0, aspect='auto')
  axes.plot(best_N, range(len(best_N)), 'o', ms=5, mfc='white', mec=canvas.INK)
  axes.add_patch(
    Rectangle(
      (-0.5, row - 0.5),
      len(candidates_N),
      1,
      fill=False,
      lw=2,
      edgecolor=canvas.COLOURS[1],
      clip_on=False,
    )  # fmt: skip
  )
  slant = dict(rotation=50, ha='right', rotation_mode='anchor')
  names = [_short(t, 14) for t in candidates_N]
  axes.set_xticks(range(len(names)), names, fontsize=9, **_MONO, **slant)
  names = [_short(t, 14) for t in before_N]
  axes.set_yticks(range(len(names)), names, fontsize=9, **_MONO)
  for one in (axes.get_yticklabels()[row], axes.get_xticklabels()[best_N[row]]):
    one.set(color=canvas.COLOURS[1], weight='bold')
  axes.set_xlabel('candidate of this slot', color=canvas.INK)
  axes.set_ylabel('predecessor', color=canvas.INK)
  bar = figure.colorbar(
    image, shrink=0.6, extend='min',
    label=f"score behind the row's best ({label})",
  )  # fmt: skip
  bar.outline.set_visible(False)
  _finish(axes, title)
  return figure


def _finish(axes, title: str) -> None:
  axes.set_title(
    title, loc='left', pad=12, fontsize=11, fontweight='bold', color=canvas.INK
  )
  axes.tick_params(length=0, labelsize=9)
  axes.spines[:].set_visible(False)
