"""Figures: drawn as asked, saved whole, and without global state."""

import os
import re
import sys

import matplotlib.image
import numpy as np
import pytest

from spinejax.report import figures

CURVES = {'ngram': [0.4, 0.2], 'dspine': [0.7, 0.5, 0.4, 0.3]}


def draw(curves=None, **options):
  options = {'title': 'a run', 'label': 'measured'} | options
  return figures.acceptance_by_position(curves or CURVES, **options)


def test_each_drafter_is_a_curve_over_positions_from_one():
  (axes,) = draw().axes
  lines = {line.get_label(): line.get_xydata() for line in axes.lines}
  assert list(lines) == ['ngram', 'dspine']
  np.testing.assert_allclose(lines['ngram'], [[1, 40], [2, 20]])
  assert lines['dspine'][:, 0].tolist() == [1, 2, 3, 4]


def test_title_axes_and_label_are_there():
  (axes,) = draw(title='smollm2, humaneval', label='synthetic').axes
  assert axes.get_title('left') == 'smollm2, humaneval'
  assert axes.get_legend().get_title().get_text() == 'synthetic'
  assert axes.get_xlabel() == 'position in the draft'
  assert axes.get_ylabel() == 'accepted, of all rounds'
  (axes,) = draw(conditional=True).axes
  assert axes.get_ylabel() == 'accepted, of rounds that got there'


def test_many_drafters_are_told_apart():
  (axes,) = draw({f'd{i}': [0.5, 0.4] for i in range(9)}).axes
  looks = {(x.get_color(), x.get_linestyle()) for x in axes.lines}
  assert len(looks) == 9


def test_none_is_a_gap():
  (axes,) = draw({'x': [0.5, None, 0.25]}).axes
  np.testing.assert_array_equal(axes.lines[0].get_ydata(), [50, np.nan, 25])


def test_image_has_the_pixels_of_the_file(tmp_path):
  figure = draw()
  image = figures.to_image(figure)
  assert (image.dtype, image.shape) == (np.uint8, (630, 1050, 3))
  assert image.flags.owndata
  assert 0.5 < (image == 255).all(-1).mean() < 0.99  # white, but not empty
  path = tmp_path / 'deep' / 'a.png'
  figures.save(figure, path)
  stored = matplotlib.image.imread(path)
  np.testing.assert_array_equal((stored[..., :3] * 255).round(), image)


def test_saving_twice_gives_the_same_bytes(tmp_path):
  figures.save(draw(), tmp_path / 'a.png')
  figures.save(draw(), tmp_path / 'b.png')
  assert (tmp_path / 'a.png').read_bytes() == (tmp_path / 'b.png').read_bytes()
  assert sorted(os.listdir(tmp_path)) == ['a.png', 'b.png']


def test_failed_save_leaves_nothing(tmp_path, monkeypatch):
  def fail(*_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'replace', fail)
  with pytest.raises(OSError, match='disk full'):
    figures.save(draw(), tmp_path / 'a.png')
  assert not os.listdir(tmp_path)


def test_pyplot_is_not_used():
  source = sys.modules[figures.__name__].__file__
  with open(source, encoding='utf-8') as file:
    assert 'pyplot' not in file.read()


@pytest.mark.parametrize(
  ('curves', 'label', 'message'),
  [
    ({}, 'measured', 'curves: expected at least one, got none'),
    ({'x': []}, 'measured', 'x: expected at least one position, got none'),
    (
      {'x': [0.5, 72.0]},
      'measured',
      'x: 72 at position 2 is not a probability',
    ),
    (
      CURVES,
      'real',
      "label: 'real' is not one of measured, compiled, modelled, synthetic",
    ),
  ],
)
def test_refuses(curves, label, message):
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    figures.acceptance_by_position(curves, title='a run', label=label)


def test_ratios_are_drawn_best_on_top():
  points = {'a': (1.0, 1.0, 1.0), 'b': (1.2, 1.1, 1.3), 'c': (0.9, None, None)}
  figure = figures.ratios(points, title='x', label='measured', unit='/ a')
  (axes,) = figure.axes
  assert [tick.get_text() for tick in axes.get_yticklabels()] == ['c', 'a', 'b']
  (bars,) = axes.containers
  low, high = bars[2][0].get_segments()[2][:, 0]
  assert (low, high) == pytest.approx((1.1, 1.3))
  with pytest.raises(ValueError, match='^points: expected at least one run'):
    figures.ratios({}, title='x', label='measured', unit='/ a')


def test_training_is_drawn_against_tokens():
  curves = {'a': [(1e6, 2.0), (3e6, 2.5)]}
  figure = figures.against_tokens(curves, title='x', label='measured', unit='t')
  (line,) = figure.axes[0].get_lines()
  assert line.get_xydata().tolist() == [[1.0, 2.0], [3.0, 2.5]]
  with pytest.raises(ValueError, match='^curves: expected at least one'):
    figures.against_tokens({'a': []}, title='x', label='measured', unit='t')


def test_predicted_against_measured():
  points = {'a': ([1, 10], [2, 9]), 'b': ([0.1, 100], [0.1, 90])}
  figure = figures.predicted_against(
    points, title='law', label='measured', unit='J'
  )
  (axes,) = figure.axes
  *drawn, diagonal = axes.lines
  for line, (x, y) in zip(drawn, points.values(), strict=True):
    np.testing.assert_array_equal(line.get_xydata().T, [x, y])
  np.testing.assert_array_equal(diagonal.get_xydata(), [[0.1] * 2, [100] * 2])
  assert axes.get_xscale() == axes.get_yscale() == 'log'
  assert axes.get_xlabel() == 'measured, J'
  with pytest.raises(ValueError, match='points: expected at least one group'):
    figures.predicted_against({}, title='law', label='measured', unit='J')


def test_parts_are_stacked():
  bars = {'short': {'read': 1.0, 'write': 2.0}, 'long': {'read': 5, 'write': 3}}
  figure = figures.stacked(bars, title='law', label='measured', unit='J')
  (axes,) = figure.axes
  ends = [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches]
  assert ends == [(0, 1), (0, 5), (1, 3), (5, 8)]
  ticks = [tick.get_text() for tick in axes.get_yticklabels()]
  assert ticks == ['short', 'long']
  with pytest.raises(ValueError, match='parts: expected at least one bar'):
    figures.stacked({}, title='law', label='measured', unit='J')


def test_by_load():
  curves = {'plain': {1: 100.0, 8: 700.0}, 'dspine': {1: 200.0, 8: 900.0}}
  how = dict(title='a run', label='synthetic', load='requests', unit='tokens/s')
  (axes,) = figures.by_load(curves, **how).axes
  assert [line.get_label() for line in axes.lines] == ['plain', 'dspine']
  assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 8]] * 2
  assert axes.lines[1].get_ydata().tolist() == [200.0, 900.0]
  assert axes.get_xlabel() == 'requests' and axes.get_ylabel() == 'tokens/s'
  with pytest.raises(ValueError, match='^curves: expected at least one, got'):
    figures.by_load({}, **how)
