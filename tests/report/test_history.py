"""What a run logged survives it, and is dropped where it comes again."""

import json

import pytest

from spinejax.report.history import History


def test_a_run_that_goes_on(tmp_path):
  path = tmp_path / 'history.jsonl'
  first = History(path)
  for step in (1, 2, 3):
    first.add(step, {'loss': 1 / step})
  again = History(path, goes_on_at=3)
  again.add(3, {'loss': 7})
  assert again.rows() == [
    {'step': 1, 'loss': 1.0}, {'step': 2, 'loss': 0.5}, {'step': 3, 'loss': 7.0}
  ]  # fmt: skip
  assert History(path).rows() == []  # begun anew


def test_a_row_that_was_cut_is_not_there(tmp_path):
  path = tmp_path / 'history.jsonl'
  History(path).add(1, {'loss': 2})
  with path.open('a') as file:
    file.write(json.dumps({'step': 2, 'loss': 3})[:9])
  assert History(path, goes_on_at=9).rows() == [{'step': 1, 'loss': 2.0}]


@pytest.mark.parametrize(
  'line', (b'{"step": 2, "lo', b'[2]', b'{"loss": 1}', b'\xff')
)
def test_damaged_rows_are_refused(tmp_path, refused, line):
  path = tmp_path / 'history.jsonl'
  path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
  before = path.read_bytes()
  with refused(f'{path}:2: damaged; delete the file to go on without ...'):
    History(path, goes_on_at=9)
  assert path.read_bytes() == before


def test_a_folder_in_its_place(tmp_path, refused):
  with refused(f'{tmp_path}: Is a directory'):
    History(tmp_path, goes_on_at=9)
