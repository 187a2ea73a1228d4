"""Data that a target writes: what is kept, and how it is stored."""

import dataclasses
import types

import numpy as np
import pytest

from spinejax.decode.generate import Completion
from spinejax.drafters.loading import plain_model
from spinejax.train import self_data
from spinejax.train.self_data import Sequences
from tests.decode import toy

LENGTH = 40


class Chat(toy.Ids):
  """Ids in decimal as text; a user turn stands between 1 2 and 3."""

  def render(self, messages):
    (message,) = messages
    assert message['role'] == 'user'
    return f'1 2 {message["content"]} 3'

  def encode(self, text):
    return [int(i) for i in text.split()]

  def encode_chat(self, turns):
    return self.encode(self.render([{'role': 'user', 'content': turns[0]}]))


def target(**changes):
  tokenizer = Chat()
  for name, value in changes.items():
    setattr(tokenizer, name, value)
  return dataclasses.replace(toy.target(), tokenizer=tokenizer)


def sequences(*rows, answer=2) -> Sequences:
  tokens_NT = np.zeros((len(rows), 6), np.int32)
  for row, tokens in zip(tokens_NT, rows, strict=True):
    row[: len(tokens)] = tokens
  return Sequences(
    tokens_NT,
    np.full(len(rows), answer, np.int32),
    np.array([len(row) for row in rows], np.int32),
  )


def test_loss_mask_is_the_answer_and_the_token_before():
  data = Sequences(
    np.zeros((4, 6), np.int32), np.array([2, 1, 5, 3]), np.array([5, 6, 6, 3])
  )
  mask = data.loss_mask()
  np.testing.assert_array_equal(
    mask,
    [
      [0, 1, 1, 1, 1, 0],
      [1, 1, 1, 1, 1, 1],
      [0, 0, 0, 0, 1, 1],
      [0, 0, 1, 0, 0, 0],  # no answer
    ],
  )
  assert mask.dtype == np.float32


def test_long_prompts_are_dropped():
  turns = ['4 5', '4 5 6', ' '.join('9' * 10), '7']
  found = self_data.encode_turns(target(), turns, max_prompt=6)
  assert found == [[1, 2, 4, 5, 3], [1, 2, 4, 5, 6, 3], [1, 2, 7, 3]]


@pytest.fixture(scope='module')
def prompts():
  return toy.prompts(3, 20, LENGTH - 8, LENGTH - 7, 1)


@pytest.fixture(scope='module')
def whole(prompts):
  """Answers that nothing stops."""
  return self_data.answer(target(), prompts, LENGTH)


def test_answers_end_at_the_length(prompts, whole):
  # Of the fourth prompt 7 tokens of answer would be left.
  kept = [p for i, p in enumerate(prompts) if i != 3]
  assert whole.tokens_NT.shape == (4, LENGTH)
  assert whole.length_N.tolist() == [LENGTH] * 4
  assert whole.answer_N.tolist() == [len(p) for p in kept]
  room = [LENGTH - len(p) for p in kept]
  wanted = toy.answers(
    target(), plain_model(), kept, max_new_tokens=room, capacity=128
  )
  for row, prompt, answer in zip(whole.tokens_NT, kept, wanted, strict=True):
    assert row.tolist() == [*prompt, *answer]


def test_answers_end_with_a_stop_token(prompts, whole):
  """The stop token belongs to the answer; short answers are dropped."""
  answer = whole.tokens_NT[0, 3:].tolist()
  stop = next(t for t in answer[8:] if t not in answer[:8])
  data = self_data.answer(target(stop_ids=(stop, stop)), prompts, LENGTH)
  expected, lengths = [], []
  for row, start in zip(whole.tokens_NT, whole.answer_N, strict=True):
    tail = row[start:].tolist()
    size = tail.index(stop) + 1 if stop in tail else len(tail)
    if size >= 8:
      lengths.append(start + size)
      expected.append([*row[: start + size], *[0] * (LENGTH - start - size)])
  assert 11 < lengths[0] < LENGTH
  np.testing.assert_array_equal(data.tokens_NT, expected)
  assert data.length_N.tolist() == lengths


def test_user_turns_that_do_not_stop_are_dropped(monkeypatch):
  asked = {}

  def generate(target, draft, prompts, **settings):
    asked.update(settings, prompts=prompts, slots=draft.drafter.slots)
    said = [('8 9', 'stop'), ('8', 'length'), ('', 'stop'), (' ', 'stop')]
    return types.SimpleNamespace(
      completions=[
        Completion(text, np.array([0]), 3, finish, 1, np.array([1]))
        for text, finish in said
      ]
    )

  monkeypatch.setattr(self_data, 'generate', generate)
  turns = self_data.write_user_turns(
    target(), ['4 ', '5 ', '6', ''], seed=11, max_tokens=7, capacity=64
  )
  # The third is its opening alone, the last one blank.
  assert turns == ['4 8 9', '6']
  # Behind the opened user turn, which nothing closes.
  assert asked['prompts'] == [[1, 2, 4], [1, 2, 5], [1, 2, 6], [1, 2]]
  assert asked['temperature'] == 1.0 and asked['top_k'] == 64
  assert (asked['seed'], asked['max_new_tokens']) == (11, 7)
  assert (asked['capacity'], asked['slots']) == (64, 0)


def test_join_drops_repetitions(refused):
  a = sequences([5, 5, 5], [1, 2, 3, 4])
  b = sequences([1, 2, 3], [5, 5, 5], [9], [9], answer=1)
  joined = self_data.join([a, b])
  # The first of equal ones stays, with what belongs to it.
  np.testing.assert_array_equal(
    joined.tokens_NT,
    sequences([5, 5, 5], [1, 2, 3, 4], [1, 2, 3], [9]).tokens_NT,
  )
  assert joined.answer_N.tolist() == [2, 2, 1, 1]
  assert joined.length_N.tolist() == [3, 4, 3, 1]
  for parts in ([], [sequences()]):
    with refused('no sequences: every prompt ... dropped'):
      self_data.join(parts)


@pytest.mark.parametrize('largest, stored', ((65535, 'u2'), (65536, 'u4')))
def test_round_trip(tmp_path, largest, stored):
  data = sequences([3, 0, largest, 7, 1], [1, 2])
  path = tmp_path / 'new' / 'sequences.npz'
  self_data.save(data, path, {})
  read = self_data.load(path)
  for field in ('tokens_NT', 'answer_N', 'length_N'):
    np.testing.assert_array_equal(getattr(read, field), getattr(data, field))
  assert read.tokens_NT.dtype == np.int32
  with np.load(path) as file:
    assert file['tokens'].dtype == np.dtype(stored)
  left = sorted(p.name for p in path.parent.iterdir())
  assert left == ['manifest.json', path.name]


def damage(path, how):
  good = sequences([1, 2, 3], [4, 5])
  arrays = dict(tokens=good.tokens_NT, answer=good.answer_N)
  if how == 'text':
    path.write_text('{"tokens": []}\nsecond line\n')
  elif how == 'empty':
    path.write_bytes(b'')
  elif how == 'truncated':
    self_data.save(good, path, {})
    path.write_bytes(path.read_bytes()[:-60])
  elif how == 'npy':
    with open(path, 'wb') as file:
      np.save(file, good.tokens_NT)
  elif how == 'field missing':
    np.savez(path, **arrays)
  elif how == 'lengths of others':
    np.savez(path, **arrays, length=np.array([3, 2, 2]))
  elif how == 'length beyond the end':
    np.savez(path, **arrays, length=np.array([3, 7]))
  elif how == 'no sequences':
    np.savez(path, tokens=np.zeros((0, 6)), answer=[], length=[])
  elif how == 'folder':
    path.mkdir()


@pytest.mark.parametrize(
  'how',
  (
    'text', 'empty', 'truncated', 'npy', 'field missing', 'lengths of others',
    'length beyond the end', 'no sequences', 'folder',
  ),
)  # fmt: skip
def test_damaged_files(tmp_path, how, refused):
  path = tmp_path / 'sequences.npz'
  damage(path, how)
  with refused(f'{path}: not a data file (...)'):
    self_data.load(path)


def test_missing_file(tmp_path, refused):
  path = tmp_path / 'sequences.npz'
  with refused(f'{path}: no such file; write it first'):
    self_data.load(path)


def test_manifest(tmp_path, refused):
  path = tmp_path / 'sequences.npz'
  manifest = tmp_path / 'manifest.json'
  with refused(f'{manifest}: no such file'):
    self_data.load_manifest(path)
  manifest.write_text('{"target": ')
  with refused(f'{manifest}: not valid JSON (...)'):
    self_data.load_manifest(path)
  manifest.write_text('{"target": "tiny"}')
  with refused(f"{manifest}: 'head_hash' is missing"):
    self_data.load_manifest(path)
  data = sequences([5, 5, 5], [1, 2, 3, 4])
  told = {'target': 'tiny', 'head_hash': 'ab', 'config': {'out': '/a/b'}}
  self_data.save(data, path, told)
  found = self_data.load_manifest(path)
  assert found['config'] == {'out': 'path/to/b'}
  assert found['target'] == 'tiny' and len(found['sha256']) == 64
  # What a kill between the two writes leaves: other data, the old manifest.
  path.write_bytes(b'other')
  with refused(
    f'{manifest} does not describe sequences.npz (an interrupted write?); '
    'write the data again'
  ):
    self_data.load_manifest(path)
