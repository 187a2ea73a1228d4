"""Tokens to text as they come."""

from collections.abc import Sequence

# What a decoder gives for bytes that are no character, or not yet one.
_INCOMPLETE = '\ufffd'


class TextStream:
  """The text of an answer, in parts that are final.

  A character whose bytes are not all there is held back, and so is what may be
  the beginning of a stop string.
  """

  def __init__(self, tokenizer, stops: Sequence[str] = ()):
    """Args:
    tokenizer: has `decode`.
    stops: strings that end the text; they are not part of it.
    """
    self._decode, self._stops = tokenizer.decode, stops
    self._ids: list[int] = []
    # Tokens before `_begin` are told; those from there to `_end` too, and are
    # decoded again for what follows them: a token's text may depend on them.
    self._begin = self._end = 0
    self._held = ''
    self.stopped = False

  def push(self, ids: Sequence[int]) -> str:
    """What is certain after these tokens; nothing after a stop string."""
    self._ids += ids
    told = self._decode(self._ids[self._begin : self._end])
    text = self._decode(self._ids[self._begin :])
    if text.endswith(_INCOMPLETE):
      return ''
    self._begin, self._end = self._end, len(self._ids)
    return self._tell(text[len(told) :])

  def end(self) -> str:
    """What was held back."""
    told = self._decode(self._ids[self._begin : self._end])
    rest = self._decode(self._ids[self._begin :])[len(told) :]
    self._begin = self._end = len(self._ids)
    rest = self._tell(rest) + self._held
    self._held = ''
    return '' if self.stopped and not rest else rest

  def _tell(self, new: str) -> str:
    if self.stopped:
      return ''
    text = self._held + new
    found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
    if found:
      self.stopped, self._held = True, ''
      return text[: min(found)]
    held = max((_overlap(text, stop) for stop in self._stops), default=0)
    self._held = text[len(text) - held :]
    return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
  """How much of the end of `text` is a beginning of `stop`."""
  for size in range(min(len(stop) - 1, len(text)), 0, -1):
    if text.endswith(stop[:size]):
      return size
  return 0
