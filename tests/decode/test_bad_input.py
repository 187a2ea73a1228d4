"""Bad input is refused before any computing, in one line."""

import dataclasses
import math

import numpy as np
import pytest

from spinejax.decode.generate import generate
from spinejax.decode.request import encode_prompts
from spinejax.drafters.loading import plain_model
from spinejax.target import memory
from spinejax.verify.sampling import Sampling
from tests.decode import toy


def decode(draft=None, prompts=((1, 2, 3),), **settings):
  return generate(toy.target(), draft or plain_model(), prompts, **settings)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
  """Whatever is refused here is refused before the caches are made."""

  def ran(*_):
    raise AssertionError('the caches were made')

  monkeypatch.setattr('spinejax.decode.state.init_cache', ran)


@pytest.mark.parametrize(
  'prompts, message',
  (
    ([], 'prompts is empty, expected at least one'),
    ('hello', "prompts = 'hello' is one string, expected a list"),
    ([[1], []], 'prompt 1 is empty'),
    (['1', ''], 'prompt 1 is empty, or a turn of it is'),
    (['1', '  \n'], 'prompt 1 is empty, or a turn of it is'),
    ([['1', '2', ' ']], 'prompt 0 is empty, or a turn of it is'),
    (
      [['1', '2']],
      'prompt 0 has 2 turns, expected user and assistant turns in order, '
      "ending with the user's",
    ),
    ([np.array([], int)], 'prompt 0 is empty'),
    ([1, 2], 'prompt 0 is 1, expected a string, strings or token ids'),
    ([[1], None], 'prompt 1 is None, expected a string, strings or token ids'),
    ([[1, 61]], 'prompt 0 has token id 61, expected 0..60'),
    ([[1], [-1]], 'prompt 1 has token id -1, expected 0..60'),
    ([[1, 2.5]], 'prompt 0 has token id 2.5, expected 0..60'),
    ([b'ab'], "prompt 0 is b'ab', expected a string, strings or token ids"),
    ({'a': 1}, 'prompts is a dict, expected a list'),
    (None, 'prompts is a NoneType, expected a list'),
    ([[1, 'b']], "prompt 0 has token id 'b', expected 0..60"),
  ),
)
def test_prompts(refused, prompts, message):
  with refused(message):
    decode(prompts=prompts)


def test_prompts_of_every_kind_are_taken():
  target = toy.target()
  assert encode_prompts(target, ['1 2', ['3'], (4,)]) == [[1, 2], [3], [4]]


@pytest.mark.parametrize(
  'settings, message',
  (
    ({'max_new_tokens': 0}, 'max_new_tokens = 0, expected 1..512'),
    ({'max_new_tokens': -3}, 'max_new_tokens = -3, expected 1..512'),
    ({'max_new_tokens': [0]}, 'max_new_tokens = 0, expected 1..512'),
    (
      {'max_new_tokens': 2**32 + 3},
      'max_new_tokens = 4294967299, expected 1..512',
    ),
    ({'max_new_tokens': 1.5}, 'max_new_tokens = 1.5, expected a whole number'),
    ({'max_new_tokens': 'a'}, "max_new_tokens = 'a', expected a whole number"),
    ({'seed': 1.5}, 'seed = 1.5, expected a whole number'),
    ({'stream': 5}, 'stream = 5, expected a function'),
    ({'temperature': 'a'}, "temperature = 'a', expected a number"),
    (
      {'temperature': 2e-38},
      'temperature = 2e-38, expected 0 (greedy) or 0.0001..10000',
    ),
    (
      {'top_k': 0.5},
      'top_k = 0.5, expected a whole number, at least 0 (0 keeps all)',
    ),
    (
      {'max_new_tokens': [3, 4]},
      'max_new_tokens names 2 caps, expected one for each of 1 prompts',
    ),
    ({'stream_rounds': 0}, 'stream_rounds = 0, expected 1..2147483647'),
    ({'seed': -1}, 'seed = -1, expected 0..4294967295'),
    ({'seed': 2**32}, 'seed = 4294967296, expected 0..4294967295'),
    ({'stop_ids': [2, 61]}, 'stop_ids has token id 61, expected 0..60'),
    ({'stop_ids': [-1]}, 'stop_ids has token id -1, expected 0..60'),
    (
      {'temperature': -0.5},
      'temperature = -0.5, expected 0 (greedy) or 0.0001..10000',
    ),
    (
      {'temperature': math.nan},
      'temperature = nan, expected 0 (greedy) or 0.0001..10000',
    ),
    (
      {'temperature': math.inf},
      'temperature = inf, expected 0 (greedy) or 0.0001..10000',
    ),
    ({'top_p': 0.0}, 'top_p = 0.0, expected above 0 and at most 1'),
    ({'top_p': 1.5}, 'top_p = 1.5, expected above 0 and at most 1'),
    ({'top_p': math.nan}, 'top_p = nan, expected above 0 and at most 1'),
    (
      {'top_k': -1},
      'top_k = -1, expected a whole number, at least 0 (0 keeps all)',
    ),
  ),
)
def test_settings(refused, settings, message):
  with refused(message):
    decode(**settings)


def test_sampling_checks_by_itself(refused):
  with refused('top_k = -2, expected a whole number, at least 0 (0 keeps all)'):
    Sampling.make(2, 1.0, top_k=-2)


def test_a_prompt_longer_than_the_context(refused):
  with refused(
    'prompt 1 has 500 tokens; with 13 new ones that exceeds the context of '
    '512 that toy-qwen3 was trained for'
  ):
    decode(prompts=[[1], [1] * 500], max_new_tokens=13)


def test_a_prompt_longer_than_the_capacity(refused):
  with refused(
    'capacity = 64 is too small: prompt 1 needs 75 rows',
  ):
    decode(plain_model(4), [[1], [1] * 60], capacity=64, max_new_tokens=10)


def test_caches_that_do_not_fit(refused, monkeypatch):
  monkeypatch.setattr(memory, 'available_bytes', lambda: 2**31)
  with refused(
    'batch 1 at capacity 10000000 needs 2.4 GiB for caches and logits; '
    '2.0 GiB are free'
  ):
    decode(capacity=10_000_000)


def test_caches_that_no_machine_holds(refused):
  with refused(
    'batch 1 at capacity 2000000000 needs ... GiB for caches and '
    'logits; ... GiB are free'
  ):
    decode(capacity=2 * 10**9)


@pytest.mark.parametrize(
  'change, message',
  (
    (
      {'vocab': 99},
      'drafter dflash was made for a target of vocab 99; toy-qwen3 has 61',
    ),
    (
      {'width': 64},
      'drafter dflash was made for a target of width 64; toy-qwen3 has 32',
    ),
    (
      {'taps': (0, 1)},
      'drafter dflash taps layers (0, 1); toy-qwen3 has outputs 0..0 before '
      'its last',
    ),
  ),
)
def test_a_drafter_of_another_shape(refused, change, message):
  draft = toy.dflash_model()
  cfg = dataclasses.replace(draft.drafter.cfg, **change)
  drafter = dataclasses.replace(draft.drafter, cfg=cfg)
  with refused(message):
    decode(dataclasses.replace(draft, drafter=drafter))


def test_a_drafter_of_another_head(refused):
  draft = dataclasses.replace(toy.dspine_model(), head_hash='0' * 16)
  with refused(
    'drafter dspine was trained for another target: its head hash is '
    f'{"0" * 16}, that of toy-qwen3 is {toy.target().head_hash}'
  ):
    decode(draft)


def test_a_template_that_renders_nothing(refused, monkeypatch):
  tokenizer = type(toy.target().tokenizer)
  monkeypatch.setattr(tokenizer, 'encode_chat', lambda self, turns: [])
  with refused('prompt 0: the chat template renders nothing'):
    decode(prompts=['1 2'])


def test_a_drafter_by_its_name(refused):
  with refused(
    "draft = 'plain', expected a DraftModel; load_drafter makes one"
  ):
    decode('plain')
