"""A TensorBoard over made-up runs, for the tests of its data and its page."""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

from spinejax.report import figures, rounds, runs
from spinejax.report.tensorboard import Writer

LINES = [rounds.Line(('def', '·f'), '(', ('x',)), rounds.Line((), ')', ('y',))]


def write_runs(root: pathlib.Path) -> None:
  """Two decodings of two drafters each, as binaries write them."""
  for name, block in (('first', 8), ('second', 16)):
    folder = root / 'decode' / name
    rows = [
      dict(drafter=drafter, dataset='humaneval', tokens_per_round=tau,
           tokens_per_s=10 * tau, acceptance_by_position=[0.5, tau / 10])
      for drafter, tau in (('ngram', 1.5), ('dspine', 3.0))
    ]  # fmt: skip
    figure = figures.acceptance_by_position(
      {row['drafter']: row['acceptance_by_position'] for row in rows},
      title='made up', label='synthetic',
    )  # fmt: skip
    runs.log(
      folder, config={'block': block, 'loss': {'alpha': 0.5}},
      points=runs.points_of(rows), figures={'acceptance_by_position': figure},
    )  # fmt: skip
    with Writer(runs.folder_of(folder, 'dspine')) as writer:
      timeline = rounds.timeline(LINES, title='made up', label='synthetic')
      writer.text(0, 'rounds', rounds.to_markdown(LINES))
      writer.image(0, 'rounds/timeline', figures.to_image(timeline))


class Board:
  """A running TensorBoard."""

  def __init__(self, url: str):
    self.url = url

  def get(self, path: str, body: dict | None = None):
    """What a route answers in JSON."""
    return json.loads(self.read(path, body))

  def read(self, path: str, body: dict | None = None) -> bytes:
    """What a route answers; with a body it is posted."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
      f'{self.url}data/{path}', data, {'Content-Type': 'application/json'}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
      return answer.read()


@contextlib.contextmanager
def serve(root: pathlib.Path):
  """Serves a folder while it is open."""
  process = subprocess.Popen(
    [sys.executable, '-m', 'tensorboard.main', '--logdir', str(root),
     '--port', '0', '--load_fast', 'false', '--reload_multifile', 'true'],
    stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
  )  # fmt: skip
  try:
    for line in process.stderr:
      if found := re.search(r'http://\S+', line):
        break
    else:
      raise RuntimeError('TensorBoard did not start')
    yield Board(found[0])
  finally:
    process.terminate()
    process.wait()
    process.stderr.close()
