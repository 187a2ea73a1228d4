"""The operating map: its regions, points and what it refuses."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from spinejax.report import figures
from spinejax.report.maps import _COLOURS, _TINT, Panel, Point, operating_map

BATCH, CONTEXT = np.geomspace(1, 256, 9), np.geomspace(128, 16384, 8)
ONES = np.ones((8, 9))


def drawn(time_saved, energy_saved, points=(), fits=None):
  panel = Panel(
    BATCH, CONTEXT, time_saved * ONES, energy_saved * ONES, fits, points
  )
  return operating_map(
    [('H200', [panel])], ['2 tokens a round'], title='map', notes=['a note'],
    label='synthetic',
  )  # fmt: skip


@pytest.mark.parametrize(
  'time_saved, energy_saved, region',
  (
    (0.2, 0.1, 'both'), (0.2, -0.1, 'time only'), (-0.2, 0.1, 'energy only'),
    (-0.2, -0.1, 'neither'),
  ),
)  # fmt: skip
def test_a_region_has_its_colour(time_saved, energy_saved, region):
  figure = drawn(time_saved, energy_saved)
  image = figures.to_image(figure) / 255
  tint = 1 - _TINT * (1 - np.array(to_rgb(_COLOURS[region])))
  found = np.abs(image - tint).max(axis=-1) < 0.02
  assert found.mean() > 0.3
  texts = [t.get_text() for t in figure.subfigs[2].legends[0].get_texts()]
  assert len(texts) == 2  # its own, and the line


def test_points_and_what_does_not_fit():
  fits = np.tile(BATCH < 64, (8, 1))
  points = [Point(8, 1024, 'both'), Point(32, 128, 'neither')]
  figure = drawn(0.1, 0.1, points, fits)
  (axes,) = figure.subfigs[1].axes
  at = [
    tuple(x)
    for some in axes.collections
    if isinstance(some, PathCollection)
    for x in some.get_offsets().tolist()
  ]
  assert sorted(at) == [(3.0, 10.0), (5.0, 7.0)]
  texts = [t.get_text() for t in figure.subfigs[2].legends[0].get_texts()]
  assert texts == [
    'saves time and energy', 'saves neither',
    'break-even in energy; thin: share saved',
    'a measured place, in its colour', 'does not fit',
  ]  # fmt: skip


def test_refused():
  with pytest.raises(ValueError, match="label: 'made up' is not one of"):
    operating_map([], [], title='', notes=[], label='made up')
  with pytest.raises(ValueError, match='H200: 0 panels, expected 1: one a'):
    operating_map([('H200', [])], ['x'], title='', notes=[], label='modelled')
