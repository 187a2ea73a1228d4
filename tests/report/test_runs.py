"""What TensorBoard finds of a run, asked by the routes of its own page."""

import time

import pytest

from spinejax.report import runs
from tests.report import board

RUNS = {
  f'decode/{name}/{drafter}'
  for name in ('first', 'second')
  for drafter in ('dspine', 'ngram')
}


@pytest.fixture(scope='module')
def shown(tmp_path_factory):
  root = tmp_path_factory.mktemp('board')
  board.write_runs(root)
  board.write_runs(root)  # the same names: in the place of what was there
  with board.serve(root) as found:
    end = time.monotonic() + 60
    while len(found.get('runs')) < 6 and time.monotonic() < end:
      time.sleep(0.2)
    yield found


def test_a_drafter_is_a_run_and_shares_its_tags(shown):
  assert set(shown.get('runs')) == RUNS | {'decode/first', 'decode/second'}
  tags = shown.get('plugin/scalars/tags')
  assert set(tags) == RUNS
  for run in RUNS:
    assert set(tags[run]) == {
      f'humaneval/{key}'
      for key in ('tokens_per_round', 'tokens_per_s', 'acceptance_by_position')
    }
  (point,) = shown.get(
    'plugin/scalars/scalars?run=decode/first/dspine'
    '&tag=humaneval/tokens_per_round'
  )
  assert point[1:] == [0, 3.0]
  curve = shown.get(
    'plugin/scalars/scalars?run=decode/second/dspine'
    '&tag=humaneval/acceptance_by_position'
  )
  assert [(step, round(x, 6)) for _, step, x in curve] == [(1, 0.5), (2, 0.3)]


def test_hyperparameters_and_metrics_are_a_table(shown):
  found = shown.get('plugin/hparams/experiment', {'experimentName': ''})
  names = {one['name'] for one in found['hparamInfos']}
  assert {'drafter', 'block', 'loss.alpha'} <= names
  groups = shown.get(
    'plugin/hparams/session_groups',
    {
      'experimentName': '', 'startIndex': 0, 'sliceSize': 10,
      'allowedStatuses': ['STATUS_UNKNOWN', 'STATUS_SUCCESS', 'STATUS_RUNNING'],
      'colParams': [],
    },
  )['sessionGroups']  # fmt: skip
  table = {
    (one['hparams']['drafter'], one['hparams']['block']): {
      value['name']['tag']: value['value'] for value in one['metricValues']
    }['humaneval/tokens_per_round']
    for one in groups
  }
  assert table == {
    ('ngram', 8): 1.5, ('dspine', 8): 3.0,
    ('ngram', 16): 1.5, ('dspine', 16): 3.0,
  }  # fmt: skip


def test_text_and_images(shown):
  texts = shown.get('plugin/text/tags')
  assert texts['decode/first'] == ['config/text_summary']
  page = shown.get(
    'plugin/text/text?run=decode/first/dspine&tag=rounds/text_summary'
  )[0]['text']
  # What the page lets through: a table, the squares, and no markup of tokens.
  assert (
    '<table>' in page and '🟩🟩🟦🟥' in page and '<code>def ·f</code>' in page
  )
  images = shown.get('plugin/images/tags')
  assert set(images['decode/first/dspine']) == {'rounds/timeline'}
  assert set(images['decode/first']) == {'acceptance_by_position'}
  (one,) = shown.get(
    'plugin/images/images?run=decode/first/dspine&tag=rounds/timeline&sample=0'
  )
  blob = shown.read(f'plugin/images/individualImage?{one["query"]}')
  assert blob.startswith(b'\x89PNG')


def test_points_are_named_by_what_differs():
  rows = [
    dict(drafter='a', dataset='x', batch=1, time_ms=2.0, tokens_per_s=None),
    dict(drafter='a', dataset='x', batch=8, time_ms=3.0),
    dict(source='runs/b', drafter='a', dataset='x', batch=8, time_ms=4.0),
    dict(op='copy', bytes_per_s=1.0),
  ]
  assert runs.points_of(rows) == {
    'a': [(0, {'batch1/time_ms': 2.0}), (0, {'batch8/time_ms': 3.0})],
    'runs/b': [(0, {'batch8/time_ms': 4.0})],
  }
  assert runs.folder_of('x', 'dspine, runs/b').name == 'dspine_runs_b'
