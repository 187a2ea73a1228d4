"""Benchmarks from made-up files in the formats of their authors."""

import json
import pathlib

import pytest

from configs.prepare_prompts import get_config
from spinejax import benchmarks, prompts

REASON = (
  '\nPlease reason step by step, and put your final answer within \\boxed{}.'
)


def lines(*rows) -> str:
  return ''.join(json.dumps(row) + '\n' for row in rows)


FILES = {
  'gsm8k': lines(
    {'question': 'Janet’s ducks lay\u2028eggs?', 'answer': '#### 18'},
    {'question': ' Two {braces}? ', 'answer': '#### 2'},
  ),
  'math500': lines(
    {'problem': 'Find $x_{1}$.', 'solution': '1', 'unique_id': 'test/1'}
  ),
  'mbpp': json.dumps(
    [
      {'task_id': i, 'prompt': f'Write {i}.', 'code': '', 'test_list': []}
      for i in (2, 10, 510, 11, 90, 511)
    ]
  ),
  'vicuna80': lines(
    {'question_id': 1, 'category': 'generic', 'turns': ['How? ']},
    {'question_id': 2, 'category': 'writing', 'turns': ['Write.', 'Again.']},
  ),
}
FILES['gsm8k_train'] = FILES['gsm8k']
TURNS = {
  'gsm8k': [
    (f'Janet’s ducks lay\u2028eggs?{REASON}',),
    (f'Two {{braces}}?{REASON}',),
  ],
  'math500': [(f'Find $x_{{1}}$.{REASON}',)],
  # In the order of the file.
  'mbpp': [('Write 510.',), ('Write 11.',), ('Write 90.',)],
  'vicuna80': [('How? ',), ('Write.', 'Again.')],
}
TURNS['gsm8k_train'] = TURNS['gsm8k']


@pytest.mark.parametrize('name', benchmarks.READERS)
def test_turns(name, tmp_path):
  path = tmp_path / 'source'
  path.write_text(FILES[name], encoding='utf-8')
  turns = benchmarks.turns_of(name, path)
  assert turns == TURNS[name]
  # And as this project reads them.
  made = tmp_path / f'{name}.jsonl'
  made.write_bytes(benchmarks.to_jsonl(turns))
  assert list(prompts.read_prompts(made).turns) == turns


def test_text_stays_as_it_is():
  made = benchmarks.to_jsonl([('“é”\n', 'b')])
  assert made == '{"turns": ["“é”\\n", "b"]}\n'.encode()


def test_the_config_knows_every_benchmark():
  config = get_config()
  assert set(config.files) == set(benchmarks.READERS)
  assert set(config.benchmarks) == {*benchmarks.READERS, 'humaneval'}
  assert set(config.sha256) == set(config.benchmarks)


@pytest.mark.parametrize(
  'name, text, message',
  (
    ('gsm8k', '', '...: has no prompts of gsm8k'),
    ('gsm8k', '{"question": "a"', '...: not a file of gsm8k (JSON...)'),
    ('gsm8k', FILES['math500'], "...gsm8k (KeyError: 'question')"),
    ('math500', '[]\n', '...: not a file of math500 (TypeError: ...)'),
    ('mbpp', FILES['gsm8k'], '...: not a file of mbpp (JSON...)'),
    ('mbpp', '[{"task_id": 3, "prompt": "a"}]', '...: has no prompts of mbpp'),
    (
      'vicuna80',
      '{"turns": [3]}',
      '...: not a file of vicuna80 (TypeError...)',
    ),
    ('aime', '', "benchmark 'aime', expected one of humaneval, gsm8k, ..."),
  ),
)
def test_files_of_another_format(name, text, message, tmp_path, refused):
  path = tmp_path / 'source'
  path.write_text(text)
  with refused(message):
    benchmarks.turns_of(name, path)


def test_missing_file(refused):
  with refused('no/file: no such file; download it first (the config ...)'):
    benchmarks.turns_of('gsm8k', pathlib.Path('no/file'))
