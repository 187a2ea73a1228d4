"""How binaries fail."""

import errno
import os

import pytest

from experiments import common


@pytest.fixture
def run(monkeypatch):
  """Runs a main as a binary does, without flags."""
  monkeypatch.setattr(common, '_config', dict)
  monkeypatch.setattr(
    common.app, 'run', lambda guarded, flags_parser: guarded(['binary'])
  )
  return common.run


@pytest.mark.parametrize(
  'number, path, message',
  (
    (errno.ENOSPC, None, 'No space left on device'),
    (errno.EACCES, 'runs/x', 'runs/x: Permission denied'),
  ),
)
def test_what_the_machine_refuses_is_one_line(
  run, capsys, number, path, message
):
  def main(config):
    raise OSError(number, os.strerror(number), path)

  with pytest.raises(SystemExit, match='^2$'):
    run(main)
  assert capsys.readouterr().err == f'error: {message}\n'


def test_what_may_be_a_bug_keeps_its_traceback(run):
  def main(config):
    open('no/such/file')

  with pytest.raises(FileNotFoundError):
    run(main)
