"""Paths of this machine, kept out of what is written to be shared."""

import pathlib
import re

# An absolute path at the start of a word or behind '=', ',', ':', a quote or a
# bracket; the slashes of a URL do not match.
_PATH = re.compile(r"""(?:^|(?<=[=,:'"(\[]))/(?!/)[^,:='")\]]*""")


def portable_text(text: str) -> str:
  """The text with absolute paths made relative, or their last part only."""

  def shorten(match: re.Match[str]) -> str:
    path = pathlib.PurePath(match.group())
    here = pathlib.Path.cwd()
    if path.is_relative_to(here):
      return str(path.relative_to(here))
    return f'path/to/{path.name}' if path.name else match.group()

  return _PATH.sub(shorten, text)
