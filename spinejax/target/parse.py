"""Files of strangers: whatever is wrong in one becomes one line."""

import contextlib
import json
import pathlib
from collections.abc import Iterator

from spinejax.errors import InputError


def one_line(error: BaseException) -> str:
  """What an exception says, on one line."""
  return ' '.join(str(error).split('\n'))


@contextlib.contextmanager
def understood(source: str | pathlib.Path) -> Iterator[None]:
  """Names the file in every error that reading its contents raises.

  Around parsing only: a value of a kind that nobody thought of fails anywhere
  between here and the constructor that it reaches.

  Raises:
    InputError: in place of whatever was raised inside.
  """
  try:
    yield
  except InputError as error:
    if str(source) in str(error):
      raise
    raise InputError(f'{source}: {error}') from None
  except Exception as error:
    raise InputError(
      f'{source}: not understood ({type(error).__name__}: {one_line(error)})'
    ) from None


def read_json(path: pathlib.Path) -> dict:
  """A JSON object from a file, or an InputError that names the file."""
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError:
    raise InputError(f'{path}: no such file') from None
  except OSError as error:  # a directory, say
    raise InputError(f'{path}: cannot be read ({error.strerror})') from None
  # Bad bytes and syntax, numbers too long, nesting too deep.
  except (ValueError, RecursionError) as error:
    raise InputError(f'{path}: not valid JSON ({one_line(error)})') from None
  if not isinstance(value, dict):
    raise InputError(f'{path}: expected a JSON object')
  return value
