"""What every binary shares: how it starts and how it fails."""

import sys
from collections.abc import Callable

from absl import app

from spinejax.errors import InputError


def run(main: Callable[[list[str]], None]) -> None:
  """`app.run`, with bad input told in one line instead of a traceback."""

  def guarded(argv: list[str]) -> None:
    if len(argv) > 1:
      print(f'error: unexpected argument {argv[1]!r}', file=sys.stderr)
      sys.exit(2)
    try:
      main(argv)
    except InputError as error:
      print(f'error: {error}', file=sys.stderr)
      sys.exit(2)

  app.run(guarded)
