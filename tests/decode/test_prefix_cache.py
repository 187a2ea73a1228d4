"""Which blocks of prompts are found, and which make room for others."""

from spinejax.decode.prefix_cache import BlockIndex


def add(index, prompt):
  """The slots that a prompt's blocks are put into, or None."""
  keys = index.keys(prompt)
  return [index.add(keys, number) for number in range(len(keys))]


def match(index, prompt):
  return index.match(index.keys(prompt))


def test_whole_blocks_that_are_read_are_found():
  index = BlockIndex(slots=9, block=4)
  slots = add(index, range(13))
  assert len(set(slots)) == 3 and len(index) == 3
  # The last token is an anchor: it is not read, so not there.
  for count, blocks in ((1, 0), (4, 0), (5, 1), (12, 2), (13, 3), (99, 3)):
    assert match(index, range(count)) == slots[:blocks]
  assert add(index, range(13)) == [None] * 3


def test_a_block_counts_with_all_before_it():
  index = BlockIndex(slots=9, block=2)
  slots = add(index, [1, 1, 2, 2, 3, 3, 0])
  assert match(index, [1, 1, 2, 2, 4, 4, 3, 3, 0]) == slots[:2]
  assert match(index, [2, 2, 3, 3, 0]) == []
  assert match(index, [9, 1, 2, 2, 3, 3, 0]) == []
  assert None not in add(index, [2, 2, 3, 3, 0])


def test_numbers_are_not_run_together():
  """1, 23 and 12, 3; and 1, 0 and 256, 0: other tokens, other keys."""
  index = BlockIndex(slots=9, block=2)
  prompts = [1, 23, 0], [12, 3, 0], [1, 0, 0], [256, 0, 0], [0, 1, 0]
  keys = {index.keys(prompt)[0] for prompt in prompts}
  assert len(keys) == len(prompts)


def test_the_least_recently_used_makes_room():
  index = BlockIndex(slots=3, block=1)
  a, b, c = add(index, [1, 0]), add(index, [2, 0]), add(index, [3, 0])
  assert match(index, [1, 0]) == a
  assert add(index, [4, 0]) == b
  assert match(index, [2, 0]) == []
  assert match(index, [1, 0]) == a and match(index, [3, 0]) == c
  assert len(index) == 3


def test_the_end_of_a_prompt_makes_room_before_its_beginning():
  index = BlockIndex(slots=3, block=1)
  first, second, third = add(index, [1, 2, 3, 0])
  assert add(index, [9, 0]) == [third]
  assert match(index, [1, 2, 3, 0]) == [first, second]


def test_a_long_prompt_does_not_push_itself_out():
  index = BlockIndex(slots=3, block=1)
  add(index, [9, 0])
  slots = add(index, range(6))
  assert None not in slots[:3] and slots[3:] == [None] * 2
  assert match(index, range(6)) == slots[:3]


def test_a_block_without_the_one_before_it_is_not_kept():
  index = BlockIndex(slots=2, block=1)
  keys = index.keys([1, 2, 0])
  assert index.add(keys, 1) is None and len(index) == 0
