"""Training data that the target writes itself.

A drafter learns to continue what its own target would say, so the data is the
target's: it continues an opened user turn (with or without a steering prefix)
by sampling, or is given a prompt, and then answers.
"""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from spinejax.decode.loop import capacity_bucket
from spinejax.decode.request import whole
from spinejax.decode.slots import check_slots, complete
from spinejax.errors import InputError
from spinejax.prompts import REASON
from spinejax.target.loading import Target
from spinejax.train.shards import Writer, Written
from spinejax.verify.sampling import Sampling

# What a sampled user turn starts with. The second is the wording in which
# HumanEval is asked; the functions after it are the target's inventions.
OPENINGS = {
  'chat': ('',),
  'code': (
    'Write a solution to the following problem and make sure that it passes '
    'the tests:\n```python\n',
    'Write a Python function',
    'Implement a function',
    'Write a Python program',
  ),
  'problem': (
    'A', 'If', 'How many', 'There are', 'John', 'Maria', 'In a', 'Tom',
    'Calculate', 'A store', 'Each', 'Sarah',
  ),
}  # fmt: skip
GIVEN, LIKE_GIVEN = 'given', 'like_given'
SUFFIX = {'problem': REASON, LIKE_GIVEN: REASON}
_WORDS = 5  # of a given prompt, that open a turn like it
_SHORTEST = 8  # tokens of an answer that is kept


@dataclasses.dataclass(frozen=True)
class Settings:
  """How sequences are made.

  Attributes:
    length: tokens of a sequence at most.
    max_prompt: longer prompts are dropped.
    max_turn: tokens that a user turn is sampled with; one that does not end
      within them is dropped.
    batch: sequences decoded at a time.
    shard: prompts of a shard; some of them come to nothing.
    seed: of the order of prompts, and of all that is sampled.
    turn_temperature, turn_top_k: how user turns are sampled.
    temperature, top_k: how answers are; temperature 0 is greedy.
  """

  length: int
  max_prompt: int
  max_turn: int
  batch: int
  shard: int
  seed: int
  turn_temperature: float
  turn_top_k: int
  temperature: float
  top_k: int

  def __post_init__(self):
    for field in ('length', 'max_prompt', 'max_turn', 'batch', 'shard'):
      if getattr(self, field) < 1:
        raise InputError(
          f'{field} = {getattr(self, field)}, expected at least 1'
        )
    whole('seed', self.seed, 0, 2**31)
    if self.length < self.max_prompt + _SHORTEST:
      raise InputError(
        f'length = {self.length}, expected at least {_SHORTEST} more than '
        f'max_prompt = {self.max_prompt}'
      )
    if self.turn_temperature <= 0:
      raise InputError(
        f'turn_temperature = {self.turn_temperature}, expected above 0: '
        'greedy turns would all be one'
      )
    Sampling.make(1, self.turn_temperature, self.turn_top_k)
    Sampling.make(1, self.temperature, self.top_k)


@dataclasses.dataclass(frozen=True)
class Start:
  """What a sequence starts from: a user turn, or, unless given, its opening."""

  kind: str
  text: str


def plan(
  openings: Mapping[str, int],
  given: Sequence[str],
  answer_given: bool,
  seed: int,
) -> list[Start]:
  """All starts of a data set, in random order.

  Args:
    openings: turns to open by kind: those of `OPENINGS`, and 'like_given',
      which opens with the first words of a given prompt.
    given: user turns.
    answer_given: whether they are answered too.

  Raises:
    InputError: a kind is not known, a count is negative, or there is nothing
      to do.
  """
  texts = dict(OPENINGS)
  if given:
    texts[LIKE_GIVEN] = tuple(' '.join(t.split()[:_WORDS]) for t in given)
  rng = np.random.default_rng(seed)
  starts = [Start(GIVEN, turn) for turn in given if answer_given]
  for kind, count in openings.items():
    if kind == LIKE_GIVEN and count and not given:
      raise InputError(f'openings.{LIKE_GIVEN} needs prompts, a file')
    if count < 0:
      raise InputError(f'openings.{kind} = {count}, expected at least 0')
    if count and kind not in texts:
      raise InputError(
        f'openings.{kind} is not known, expected {", ".join(texts)}'
      )
    if count:
      chosen = rng.integers(len(texts[kind]), size=count)
      starts += [Start(kind, texts[kind][i]) for i in chosen]
  if not starts:
    raise InputError('openings are all 0, and there are no prompts to answer')
  return [starts[i] for i in rng.permutation(len(starts))]


def check(target: Target, starts: Sequence[Start], how: Settings) -> None:
  """Refuses what the target could not write.

  Raises:
    InputError: sequences exceed its context, the longest opening leaves no
      room for a turn, or a batch of this size cannot be run.
  """
  openings = sorted({s.text for s in starts if s.kind != GIVEN})
  longest = max(map(len, encode_openings(target, openings)), default=0)
  for field, need in (
    ('length', how.length),
    ('max_turn', longest + how.max_turn if openings else 0),
  ):
    if need > target.cfg.max_position:
      raise InputError(
        f'{field} = {getattr(how, field)} exceeds the context of '
        f'{target.cfg.max_position} that {target.name} was trained for'
      )
  capacity = capacity_bucket(max(how.length, longest + how.max_turn) + 1)
  check_slots(target, how.batch, capacity)


def write(
  target: Target,
  starts: Sequence[Start],
  how: Settings,
  folder: str | os.PathLike[str],
  config: Any,
) -> dict[str, Any]:
  """Writes a data set, or what is missing of it.

  Args:
    config: kept in the manifest; a data set of another one is not gone on with.

  Returns:
    The manifest.

  Raises:
    InputError: see `check` and `Writer`; or nothing was kept at all.
  """
  check(target, starts, how)
  shards = -(-len(starts) // how.shard)
  writer = Writer(folder, target, shards=shards, config=config)
  for number in range(writer.next, shards):
    began, first = time.perf_counter(), number * how.shard
    some = starts[first : first + how.shard]
    sequences, sampled = _sequences(target, some, how.seed + first, how)
    writer.add(sequences)
    took = time.perf_counter() - began
    said = sampled + sum(len(s.tokens) - s.answer for s in sequences)
    logging.info(
      'shard %d of %d: %d sequences of %d starts, %.0f s, %.0f tokens/s',
      number + 1, shards, len(sequences), len(some), took, said / took,
    )  # fmt: skip
  if not writer.manifest['sequences']:
    raise InputError(
      'no sequences: every prompt was too long, or every turn or answer was '
      'dropped'
    )
  return writer.manifest


def _sequences(
  target: Target, starts: Sequence[Start], seed: int, how: Settings
) -> tuple[list[Written], int]:
  """The sequences of one shard, and how many tokens of turns were sampled."""
  turns, sampled = user_turns(target, starts, seed, how)
  numbers = [i for i, turn in enumerate(turns) if turn is not None]
  prompts = target.tokenizer.encode_turns([turns[i] for i in numbers])
  asked = [
    (i, prompt)
    for i, prompt in zip(numbers, prompts, strict=True)
    if len(prompt) <= how.max_prompt
  ]
  answers = complete(
    target,
    [prompt for _, prompt in asked],
    ends=[how.length] * len(asked),
    seeds=[seed + i for i, _ in asked],
    slots=how.batch,
    temperature=how.temperature,
    top_k=how.top_k,
  )
  return [
    Written(starts[i].kind, np.concatenate([prompt, answer]), len(prompt))
    for (i, prompt), answer in zip(asked, answers, strict=True)
    if len(answer) >= _SHORTEST
  ], sampled


def encode_openings(target: Target, prefixes: Sequence[str]) -> list[list[int]]:
  """Ids of user turns that are opened with a prefix and not closed."""
  marker = '\0'
  opened = target.tokenizer.render([{'role': 'user', 'content': marker}])
  opened = opened.split(marker)[0]
  return target.tokenizer.encode_batch([opened + p for p in prefixes])


def user_turns(
  target: Target, starts: Sequence[Start], seed: int, how: Settings
) -> tuple[list[str | None], int]:
  """The user turn of each start, and how many tokens were sampled for them.

  None in the place of a turn that does not end in time, or is blank.
  """
  turns = [s.text if s.kind == GIVEN else None for s in starts]
  opened = [i for i, s in enumerate(starts) if s.kind != GIVEN]
  prompts = encode_openings(target, [starts[i].text for i in opened])
  answers = complete(
    target,
    prompts,
    ends=[len(p) + how.max_turn for p in prompts],
    seeds=[seed + i for i in opened],
    slots=how.batch,
    temperature=how.turn_temperature,
    top_k=how.turn_top_k,
  )
  stops = set(target.tokenizer.stop_ids)
  texts = target.tokenizer.decode_batch(answers)
  for i, answer, text in zip(opened, answers, texts, strict=True):
    turn = starts[i].text + text
    if int(answer[-1]) in stops and turn.strip():
      turns[i] = turn + SUFFIX.get(starts[i].kind, '')
  return turns, sum(map(len, answers))
