"""Data that a target writes: what is asked, what is kept, what is refused."""

import dataclasses

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from spinejax.drafters.loading import plain_model
from spinejax.train import self_data
from spinejax.train.self_data import GIVEN, LIKE_GIVEN, Settings, Start
from spinejax.train.shards import decode, open_data
from tests.decode import toy

HOW = Settings(
  length=40, max_prompt=30, max_turn=12, batch=4, shard=8, seed=3,
  turn_temperature=1.0, turn_top_k=20, temperature=0.0, top_k=0,
)  # fmt: skip


class Chat(toy.Ids):
  """Ids in decimal as text; a user turn stands between 1 2 and 3."""

  def render(self, messages):
    (message,) = messages
    assert message['role'] == 'user'
    return f'1 2 {message["content"]} 3'

  def encode_batch(self, texts):
    return [[int(i) for i in text.split()] for text in texts]

  def encode_turns(self, turns):
    chats = [[{'role': 'user', 'content': turn}] for turn in turns]
    return self.encode_batch([self.render(chat) for chat in chats])

  def decode_batch(self, answers):
    return [
      ' ' + self.decode(i for i in ids if i not in self.stop_ids)
      for ids in answers
    ]


@pytest.fixture(autouse=True)
def suffix(monkeypatch):
  """In ids, as all texts of this target."""
  monkeypatch.setattr(self_data, 'SUFFIX', {LIKE_GIVEN: ' 17'})


def target(*stop_ids):
  tokenizer = Chat()
  tokenizer.stop_ids = stop_ids or toy.STOPS
  return dataclasses.replace(toy.target(), tokenizer=tokenizer)


# A target that stops, sooner or later.
STOPS = (7, 30)
OPENED = [Start('chat', str(i)) for i in range(20, 32)]
GIVEN_TURNS = [
  Start(GIVEN, ' '.join(str(t) for t in turn))
  for turn in toy.prompts(3, 9, 14, 3, 27, 28, seed=23)
]


def written(folder):
  data = open_data(folder, target=target(), longest=HOW.length)
  return data.manifest, [
    (tokens.tolist(), answer)
    for path in data.paths
    for tokens, answer in (
      decode(record, data.dtype)
      for record in ArrayRecordReader(path).read_all()
    )
  ]


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_plan_has_what_was_asked_for():
  given = ['one two three four five six seven', 'a b']
  openings = {'chat': 3, 'code': 40, LIKE_GIVEN: 20, 'problem': 0}
  starts = self_data.plan(openings, given, True, seed=1)
  kinds = [s.kind for s in starts]
  assert len(starts) == 65 and kinds.count(GIVEN) == 2
  assert {k: kinds.count(k) for k in openings} == openings
  assert kinds != sorted(kinds)
  texts = {k: {s.text for s in starts if s.kind == k} for k in kinds}
  assert texts['code'] == set(self_data.OPENINGS['code'])
  assert texts['chat'] == {''} and texts[GIVEN] == set(given)
  assert texts[LIKE_GIVEN] == {'one two three four five', 'a b'}
  assert starts == self_data.plan(openings, given, True, seed=1)
  assert starts != self_data.plan(openings, given, True, seed=2)
  kinds = {s.kind for s in self_data.plan(openings, given, False, seed=1)}
  assert kinds == {'chat', 'code', LIKE_GIVEN}


@pytest.mark.parametrize(
  'openings, given, message',
  (
    ({'chat': -1}, [], 'openings.chat = -1, expected at least 0'),
    ({'caht': 1}, [], 'openings.caht is not known, expected chat, code, ...'),
    ({LIKE_GIVEN: 1}, [], 'openings.like_given needs prompts, a file'),
    ({'chat': 0}, [], 'openings are all 0, and there are no prompts ...'),
    ({'chat': 0}, ['a'], 'openings are all 0, and there are no prompts ...'),
  ),
)
def test_plans_that_are_refused(openings, given, message, refused):
  with refused(message):
    self_data.plan(openings, given, False, seed=0)


def test_user_turns():
  """Sampled behind the opened turn; those that do not end are dropped."""
  starts = [*OPENED, GIVEN_TURNS[0], Start(LIKE_GIVEN, '4 6')]
  turns, sampled = self_data.user_turns(target(*STOPS), starts, 70, HOW)
  prompts = [[1, 2, *map(int, s.text.split())] for s in starts]
  answers = [
    toy.answers(
      target(), plain_model(), [prompt], max_new_tokens=HOW.max_turn,
      temperature=1.0, top_k=20, seed=70 + i, stop_ids=STOPS,
    )[0]
    for i, prompt in enumerate(prompts)
  ]  # fmt: skip
  del answers[len(OPENED)]
  assert sampled == sum(map(len, answers))
  assert turns.pop(len(OPENED)) == GIVEN_TURNS[0].text  # as it is
  kept = 0
  for start, turn, answer in zip(
    [*OPENED, starts[-1]], turns, answers, strict=True
  ):
    if answer[-1] in STOPS:
      words = [start.text, *map(str, answer[:-1])]
      words += ['17'] * (start.kind == LIKE_GIVEN)
      assert turn.split() == words
      kept += 1
    else:
      assert turn is None and len(answer) == HOW.max_turn
  assert 0 < kept < len(answers)


def test_answers(tmp_path):
  """Greedy, to the stop token or the length; what is short or long goes."""
  self_data.write(target(*STOPS), GIVEN_TURNS, HOW, tmp_path, {})
  manifest, found = written(tmp_path)
  wanted = []
  for start in GIVEN_TURNS:
    prompt = [1, 2, *map(int, start.text.split()), 3]
    if len(prompt) > HOW.max_prompt:
      continue
    (answer,) = toy.answers(
      target(), plain_model(), [prompt], stop_ids=STOPS,
      max_new_tokens=HOW.length - len(prompt),
    )  # fmt: skip
    if len(answer) >= 8:
      wanted.append(([*prompt, *answer], len(prompt)))
  assert found == wanted and len(found) == len(GIVEN_TURNS) - 2
  assert manifest['kinds'][GIVEN]['sequences'] == len(found)
  assert manifest['answer_tokens'] == sum(len(t) - a for t, a in found)
  ends = [t[-1] in STOPS for t, _ in found]
  assert any(ends)


def test_sampled_answers(tmp_path):
  how = dataclasses.replace(HOW, temperature=1.0, top_k=30)
  self_data.write(target(), GIVEN_TURNS[1:2], how, tmp_path, {})
  _, ((tokens, start),) = written(tmp_path)
  (answer,) = toy.answers(
    target(), plain_model(), [tokens[:start]], temperature=1.0, top_k=30,
    seed=HOW.seed, max_new_tokens=HOW.length - start,
  )  # fmt: skip
  assert tokens[start:] == answer


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
  starts = [*OPENED, *GIVEN_TURNS]
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  told = self_data.write(target(*STOPS), starts, HOW, whole, {})
  assert len(told['shards']) == 3 and told['finished']
  assert set(told['kinds']) == {'chat', GIVEN}
  made = self_data._sequences

  def die(target, some, seed, how):
    if seed > HOW.seed + HOW.shard:
      raise KeyboardInterrupt
    return made(target, some, seed, how)

  monkeypatch.setattr(self_data, '_sequences', die)
  with pytest.raises(KeyboardInterrupt):
    self_data.write(target(*STOPS), starts, HOW, killed, {})
  assert len(contents(killed)) == 3  # two shards and the manifest
  monkeypatch.undo()
  self_data.write(target(*STOPS), starts, HOW, killed, {})
  assert contents(killed) == contents(whole)


def test_repetitions_are_dropped(tmp_path):
  told = self_data.write(target(), GIVEN_TURNS[1:2] * 20, HOW, tmp_path, {})
  assert (told['sequences'], told['repetitions']) == (1, 19)


def test_nothing_is_kept(tmp_path, refused):
  with refused('no sequences: every prompt was too long, or ... dropped'):
    self_data.write(target(), GIVEN_TURNS[-1:], HOW, tmp_path, {})


@pytest.mark.parametrize(
  'changes, message',
  (
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(shard=0), 'shard = 0, expected at least 1'),
    (dict(seed=-1), 'seed = -1, expected 0...'),
    (
      dict(max_prompt=33),
      'length = 40, expected at least 8 more than max_prompt = 33',
    ),
    (dict(turn_temperature=0), 'turn_temperature = 0, expected above 0: ...'),
    (dict(turn_top_k=-1), 'top_k = -1, expected a whole number, ...'),
    (dict(temperature=-1.0), 'temperature = -1.0, expected 0 (greedy) ...'),
  ),
)
def test_settings_that_are_refused(changes, message, refused):
  with refused(message):
    dataclasses.replace(HOW, **changes)


@pytest.mark.parametrize(
  'changes, message',
  (
    (
      dict(length=513),
      'length = 513 exceeds the context of 512 that toy-qwen3 was trained for',
    ),
    (dict(max_turn=510), 'max_turn = 510 exceeds the context of 512 that ...'),
    (dict(batch=10**7), 'batch ... needs ... GiB ...'),
  ),
)
def test_what_the_target_cannot_write(tmp_path, changes, message, refused):
  how = dataclasses.replace(HOW, **changes)
  with refused(message):
    self_data.write(target(), OPENED, how, tmp_path, {})
  assert not contents(tmp_path)
