"""Rounds as coloured text and as pictures."""

import types

import numpy as np
import pytest

from spinejax.report import canvas, rounds

LINES = [
  rounds.Line(('def', '·f'), '(', ('x', '<|`')),
  rounds.Line((), 'a|b', ()),
  rounds.Line(('last',), None, ()),
]


def seen(proposed, accepted, emitted):
  return types.SimpleNamespace(
    proposed_S=np.array(proposed), accepted=accepted, emitted=np.array(emitted)
  )


@pytest.mark.parametrize(
  'one, line',
  (
    (seen([1, 2, 3], 2, [1, 2, 9]), rounds.Line(('1', '2'), '9', ('3',))),
    (seen([1, 2, 3], 3, [1, 2, 3, 9]), rounds.Line(('1', '2', '3'), '9', ())),
    # No proposal in the last slots.
    (seen([1, -1, -1], 0, [7]), rounds.Line((), '7', ('1',))),
    # Cut at a stop token inside the run.
    (seen([1, 2, 3], 3, [1, 2]), rounds.Line(('1', '2'), None, ())),
  ),
)
def test_line_of_a_round(one, line):
  assert rounds.Line.of(one, str) == line


def test_tokens_are_shown_with_their_spaces():
  words = {3: ' a', 4: '\n'}
  of = types.SimpleNamespace(decode=lambda ids, keep_special: words[ids[0]])
  assert [rounds.shown(of)(np.int32(i)) for i in (3, 4)] == ['·a', '\\n']


def test_markdown_has_a_row_a_round():
  legend, _, head, rule, *rows = rounds.to_markdown(LINES).splitlines()
  assert legend.startswith('🟩 proposed and accepted, 🟦')
  assert head.count('|') == rule.count('|') == 6
  assert rows == [
    "| 1 | 🟩🟩🟦🟥🟥 | `def ·f` | `(` | `x <\\|'` |",
    '| 2 | 🟦 |  | `a\\|b` |  |',
    '| 3 | 🟩 | `last` |  |  |',
  ]


def test_html_is_coloured_and_escaped():
  page = rounds.to_html(LINES)
  assert page.count('line-through') == 2
  assert '&lt;|`</span>' in page and '<|' not in page
  kept = rounds.to_html(LINES, rejected=False)
  assert 'rejected' not in kept and '&lt;' not in kept
  assert kept.count('<div>') == 3


def test_timeline():
  figure = rounds.timeline(LINES, title='a run', label='synthetic')
  (axes,) = figure.axes
  assert [t.get_text() for t in axes.texts] == [
    'def', '·f', '(', 'x', '<|`', 'a|b', 'last',
  ]  # fmt: skip
  ticks = [tick.get_text().split() for tick in axes.get_yticklabels()]
  assert ticks == [['1', '+3'], ['2', '+1'], ['3', '+1']]
  (legend,) = figure.legends
  assert legend.get_title().get_text() == 'synthetic'
  with pytest.raises(ValueError, match='^lines: expected at least one round'):
    rounds.timeline([], title='a run', label='synthetic')


def test_by_layer():
  words = [['a', 'x', 'c'], ['a', 'b', 'x']]
  figure = rounds.by_layer(
    words, ['a', 'b', 'c'], title='t', label='measured', kept=2
  )
  (axes,) = figure.axes
  same = [p.get_facecolor() for p in axes.patches[:6]]
  assert same[0] == same[2] == same[3] == same[4] != same[1] == same[5]
  weights = [t.get_weight() for t in axes.texts[6:]]
  assert weights == ['bold', 'bold', 'normal']
  with pytest.raises(ValueError, match='^words: expected 3 tokens a layer'):
    rounds.by_layer([['a']], ['a', 'b', 'c'], title='t', label='measured')


def test_heat_and_transition():
  heat = rounds.heat([[0.1, 0.9]], title='t', label='measured', unit='gate')
  assert [t.get_text() for t in heat.axes[0].texts] == ['0.10', '0.90']
  table = rounds.transition(
    np.array([[1.0, 2.0], [5.0, 3.0]]), ['p', 'q'], ['c', 'd'], 1,
    title='t', label='measured',
  )  # fmt: skip
  axes = table.axes[0]
  np.testing.assert_array_equal(axes.images[0].get_array(), [[-1, 0], [0, -2]])
  assert axes.lines[0].get_xdata().tolist() == [1, 0]
  ticks = [*axes.get_yticklabels(), *axes.get_xticklabels()]
  orange = [t.get_text() for t in ticks if t.get_color() == canvas.COLOURS[1]]
  assert orange == ['q', 'c']
