"""Text in final parts: characters are whole, stop strings are never told."""

import itertools

import pytest

from spinejax.serve.text import TextStream


class Bytes:
  """Token ids are bytes of UTF-8."""

  def decode(self, ids):
    return bytes(ids).decode(errors='replace')


def parts(text, stops=(), sizes=(1,)):
  """The parts that a text comes in, its bytes pushed by these numbers."""
  stream, data, at, found = TextStream(Bytes(), stops), text.encode(), 0, []
  for size in itertools.cycle(sizes):
    if at >= len(data) or stream.stopped:
      break
    found.append(stream.push(data[at : at + size]))
    at += size
  return [*found, stream.end()], stream.stopped


@pytest.mark.parametrize('sizes', ((1,), (3, 1, 7), (100,)))
def test_characters_are_whole(sizes):
  text = 'aß€😀 — naïve'
  found, stopped = parts(text, sizes=sizes)
  assert ''.join(found) == text
  assert not any('\ufffd' in part for part in found)
  assert not stopped


def test_what_never_becomes_a_character_is_told_at_the_end():
  stream = TextStream(Bytes())
  assert stream.push('a€'.encode()[:3]) == ''
  assert stream.end() == 'a\ufffd'


@pytest.mark.parametrize('sizes', ((1,), (2, 5), (100,)))
@pytest.mark.parametrize(
  'text, told',
  (
    ('one\n\ntwo', 'one'),
    ('one\ntwo', 'one\ntwo'),
    ('END', ''),
    ('EN END ENEND', 'EN '),
    ('ends in EN', 'ends in EN'),
    ('\n', '\n'),
  ),
)
def test_stop_strings(text, told, sizes):
  found, stopped = parts(text, ('END', '\n\n'), sizes)
  assert ''.join(found) == told
  assert stopped == (told != text)


def test_nothing_is_held_back_longer_than_needed():
  found, _ = parts('abxEcd', ('END',))
  assert found == ['a', 'b', 'x', '', 'Ec', 'd', '']
