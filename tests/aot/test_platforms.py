"""The table of platforms, from end to end, at toy shapes."""

from spinejax.report import results
from tests.experiments import binaries


def test_platforms(tmp_path):
  fields = dict(
    platforms="('h100','v5e')", ops="('transition',)", round='False',
    results=tmp_path,
  )  # fmt: skip
  done = binaries.start(
    'platforms', '--config=configs/platforms.py:toy',
    *(f'--config.{field}={value}' for field, value in fields.items()),
  )  # fmt: skip
  assert done.status == 0, done.err
  result = results.load(tmp_path / 'platforms' / 'platforms.json')
  assert result['label'] == 'compiled'
  assert [(r['platform'], r['shape']) for r in result['metrics']] == [
    ('h100', 'toy_1'), ('h100', 'toy_2'), ('v5e', 'toy_1'), ('v5e', 'toy_2'),
  ]  # fmt: skip
  for row in result['metrics']:
    assert row['modelled_time_ms'] > 0
    assert ('compiled_time_ms' in row) == (row['platform'] == 'v5e')
  assert (tmp_path / 'platforms' / 'platforms.png').stat().st_size > 1000
