"""Prompt files of benchmarks, made and checked."""

import hashlib

import pytest

from spinejax import prompts
from tests.experiments import binaries
from tests.test_benchmarks import FILES, TURNS


def run(folder, **fields):
  fields = dict(downloads=folder, out=folder / 'made') | fields
  return binaries.fork(
    'prepare_prompts',
    '--config=configs/prepare_prompts.py',
    *(f'--config.{field}={value}' for field, value in fields.items()),
  )


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'mine.json').write_text(FILES['mbpp'])
  return tmp_path


MINE = {'benchmarks': "('mbpp',)", 'files.mbpp': 'mine.json'}


def test_humaneval_is_what_the_config_says(folder):
  """Nothing is needed for it but the package."""
  done = run(folder, benchmarks="('humaneval',)")
  assert done.status == 0, done.err
  made = folder / 'made' / 'humaneval.jsonl'
  assert done.out.splitlines()[-1] == str(made.parent)
  assert prompts.read_prompts(made).turns == prompts.humaneval().turns


def test_own_files(folder):
  done = run(folder, **MINE, **{'sha256.mbpp': ''})
  made = folder / 'made' / 'mbpp.jsonl'
  assert list(prompts.read_prompts(made).turns) == TURNS['mbpp']
  sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
  assert done.out.splitlines() == [
    f'mbpp: 3 prompts, {sha256}',
    str(made.parent),
  ]
  assert not run(folder, **MINE, **{'sha256.mbpp': sha256}).status


@pytest.mark.parametrize(
  'fields, message',
  (
    (MINE, 'mbpp: 3 prompts of SHA-256 '),
    (
      {'benchmarks': "('humaneval', 'mbpp')"},
      '{tmp}/sanitized-mbpp.json: no such file; download it first',
    ),
    ({'benchmarks': '()'}, 'benchmarks is empty, expected at least one'),
    ({'benchmarks': "('aime',)"}, "benchmark 'aime', expected one of human"),
  ),
)
def test_nothing_is_written(folder, fields, message):
  done = run(folder, **fields)
  assert done.status == 2
  assert done.err.startswith(f'error: {message.replace("{tmp}", str(folder))}')
  assert done.err.count('\n') == 1
  assert not (folder / 'made').exists()
