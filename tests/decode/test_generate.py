"""Decoding ragged batches: every drafter's output is plain decoding's."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode.generate import generate
from spinejax.decode.loop import capacity_bucket
from spinejax.drafters import backbone
from spinejax.drafters.loading import ngram_model, plain_model
from spinejax.target.memory import PREFILL_CHUNK
from spinejax.target.model import forward, init_cache, unembed
from tests.decode import toy
from tests.decode.toy import NEW, SLOTS, STOPS

# Ragged, with both sides of the prefill chunk (the last token is not read).
LENGTHS = (1, 2, 17, PREFILL_CHUNK, PREFILL_CHUNK + 1, PREFILL_CHUNK + 2, 40, 3)
PROMPTS = toy.prompts(*LENGTHS)


@functools.cache
def truth(family='qwen3'):
  """Plain greedy decoding with as many rows as the drafters' rounds."""
  got = toy.answers(toy.target(family), plain_model(SLOTS), PROMPTS)
  assert all(len(tokens) == NEW for tokens in got)
  return got


def oracle(**config):
  return toy.oracle_model(PROMPTS, truth(), **config)


def lagging_extend(cfg, params, cache, features_BKP, count_B):
  """Takes in nothing for every other request."""
  count_B = jnp.where(jnp.arange(len(count_B)) % 2 == 0, 0, count_B)
  return backbone.extend_backbone(cfg, params, cache, features_BKP, count_B)


def lagging_model():
  model = toy.dspine_model()
  drafter = dataclasses.replace(model.drafter, extend=lagging_extend)
  return dataclasses.replace(model, drafter=drafter)


@pytest.mark.parametrize('family', toy.FAMILIES)
def test_plain_decoding_is_the_argmax_of_one_uncached_pass(family):
  target = toy.target(family)
  rows = [[*p, *a] for p, a in zip(PROMPTS, truth(family), strict=True)]
  T = max(map(len, rows))
  tokens_BT = np.array([row + [0] * (T - len(row)) for row in rows])
  out = jax.jit(forward, static_argnums=0)(
    target.cfg, target.params, tokens_BT, init_cache(target.cfg, len(rows), T)
  )
  logits_BTV = unembed(out.hidden_BQD, target.params.head_VD)
  best_BT = np.asarray(logits_BTV.argmax(-1))
  top_BT2 = np.sort(logits_BTV, axis=-1)[..., -2:]
  for b, (prompt, answer) in enumerate(
    zip(PROMPTS, truth(family), strict=True)
  ):
    at = slice(len(prompt) - 1, len(prompt) - 1 + NEW)
    assert best_BT[b, at].tolist() == answer
    # Nothing below rests on a tie.
    assert np.diff(top_BT2[b, at]).min() > 1e-4


@pytest.mark.parametrize(
  'family, draft',
  (
    ('qwen3', ngram_model(SLOTS)),
    ('qwen3', toy.dflash_model()),
    ('qwen3', toy.dspine_model()),
    ('qwen3', lagging_model()),
    ('llama', toy.dspine_model('llama')),
    ('qwen2', toy.dflash_model()),
  ),
  ids=('ngram', 'dflash', 'dspine', 'lagging', 'dspine-llama', 'dflash-qwen2'),
)
def test_greedy_output_is_that_of_plain_decoding(family, draft):
  got = toy.answers(toy.target(family), draft, PROMPTS)
  assert got == truth(family)


@pytest.mark.parametrize(
  'name',
  (
    'dflash2',
    'domino',
    'domino-unshifted',
    'dspark-vanilla',
    'dspark-rnn',
    'dflash-anchor-first',
  ),
)
def test_greedy_output_with_the_other_drafters(name):
  draft = toy.other_model(name)
  assert draft.drafter.slots == SLOTS
  assert toy.answers(toy.target(), draft, PROMPTS) == truth()


def test_accepted_runs_of_every_length_leave_the_output_as_it_is():
  done = toy.decode(toy.target(), oracle(), PROMPTS)
  assert toy.tokens_of(done) == truth()
  hist_K = sum(c.accepted_hist for c in done.completions)
  assert hist_K.shape == (SLOTS + 1,)
  assert (hist_K > 0).all()
  for c in done.completions:
    kept = np.arange(1, SLOTS + 2) @ c.accepted_hist
    assert kept == len(c.tokens) == NEW
    assert c.rounds == c.accepted_hist.sum() < NEW / 2
    assert c.tokens_per_round == NEW / c.rounds


def test_a_drafter_of_no_slots_is_plain_decoding():
  assert toy.answers(toy.target(), plain_model(), PROMPTS) == truth()


def test_prompts_of_one_token():
  alone = toy.prompts(*[1] * 8, seed=1)
  want = toy.answers(toy.target(), plain_model(SLOTS), alone)
  got = toy.answers(toy.target(), toy.oracle_model(alone, want), alone)
  assert got == want
  # The same first tokens beside long prompts.
  mixed = [*alone[:4], *PROMPTS[4:]]
  assert toy.answers(toy.target(), plain_model(SLOTS), mixed)[:4] == want[:4]


@pytest.mark.parametrize('cap', (1, 2, 3, SLOTS, SLOTS + 1, SLOTS + 2, 11))
def test_caps(cap):
  done = toy.decode(toy.target(), oracle(), PROMPTS, max_new_tokens=cap)
  assert toy.tokens_of(done) == [tokens[:cap] for tokens in truth()]
  for c in done.completions:
    assert c.finish == 'length'
    assert np.arange(1, SLOTS + 2) @ c.accepted_hist == cap


def test_a_cap_for_each_request():
  caps = [1, 2, 3, 20, SLOTS + 1, SLOTS, 7, 24]
  done = toy.decode(toy.target(), oracle(), PROMPTS, max_new_tokens=caps)
  want = [tokens[:cap] for tokens, cap in zip(truth(), caps, strict=True)]
  assert toy.tokens_of(done) == want


@pytest.mark.parametrize('place', range(9))
def test_stop_tokens_inside_an_accepted_run(place):
  """A stop token at each place of a run, also twice in one run."""
  stops = (truth()[0][place], truth()[5][place + 2])
  done = toy.decode(toy.target(), oracle(), PROMPTS, stop_ids=stops)
  for c, tokens in zip(done.completions, truth(), strict=True):
    ends = [i + 1 for i, t in enumerate(tokens) if t in stops]
    assert c.tokens.tolist() == tokens[: min([NEW, *ends])]
    assert c.finish == ('stop' if ends else 'length')
    assert np.arange(1, SLOTS + 2) @ c.accepted_hist == len(c.tokens)


def test_a_stop_token_at_the_cap_is_a_stop():
  stops = (truth()[0][4], truth()[0][4])
  cap = truth()[0].index(stops[0]) + 1
  done = toy.decode(
    toy.target(), oracle(), PROMPTS, stop_ids=stops, max_new_tokens=cap
  )
  assert done.completions[0].finish == 'stop'


def sample(draft=None, prompts=PROMPTS, **settings):
  draft = draft or toy.dflash_model()
  settings = {'temperature': 1.0} | settings
  return toy.answers(toy.target(), draft, prompts, **settings)


def test_a_seed_decides_what_is_sampled():
  assert sample(seed=3) == sample(seed=3)
  other = sample(seed=90)
  assert all(a != b for a, b in zip(sample(seed=3), other, strict=True))


def test_request_i_draws_from_seed_plus_i():
  same = [PROMPTS[2]] * 8
  first, second = sample(prompts=same, seed=4), sample(prompts=same, seed=5)
  assert first[1:] == second[:-1]
  assert len(set(map(tuple, first))) == 8


@pytest.mark.parametrize('temperature', (0.0, 1.0))
def test_neighbours_do_not_matter(temperature):
  others = toy.prompts(9, 1, 80, 2, 200, 130, 5, 5, seed=2)
  for row in (0, 3, 5):
    mixed = [*others[:row], PROMPTS[row], *others[row + 1 :]]
    mixed_answers = sample(prompts=mixed, temperature=temperature)
    assert mixed_answers[row] == sample(temperature=temperature)[row]


def test_a_batch_leaves_nothing_behind():
  first = sample()
  sample(prompts=toy.prompts(80, 3, 1, 140, 9, 9, 9, 2, seed=3))
  assert sample() == first


def test_top_k_one_is_greedy():
  # Another program than the greedy one: the same tokens without ties.
  assert sample(top_k=1) == truth()


@pytest.mark.parametrize('stream_rounds', (1, 3, 100))
@pytest.mark.parametrize('temperature', (0.0, 1.0))
def test_streaming_yields_the_same_tokens_in_order(stream_rounds, temperature):
  draft = toy.dflash_model() if temperature else oracle()
  settings = dict(temperature=temperature, stop_ids=(truth()[0][6], STOPS[0]))
  parts = []
  got = toy.answers(
    toy.target(), draft, PROMPTS, stream=parts.append,
    stream_rounds=stream_rounds, **settings,
  )  # fmt: skip
  assert got == toy.answers(toy.target(), draft, PROMPTS, **settings)
  streamed = [np.concatenate(row).tolist() for row in zip(*parts, strict=True)]
  assert streamed == got
  longest = stream_rounds * (SLOTS + 1)
  assert all(len(new) <= longest for part in parts for new in part)
  assert len(parts) == 1 or stream_rounds < 100


def test_text_prompts_and_answers():
  texts = [' '.join(map(str, p)) for p in PROMPTS]
  turns = [[t] for t in texts]
  for prompts in (texts, turns, tuple(map(np.array, PROMPTS))):
    done = toy.decode(toy.target(), oracle(), prompts, max_new_tokens=3)
    for c, prompt, answer in zip(
      done.completions, PROMPTS, truth(), strict=True
    ):
      assert c.text == ' '.join(map(str, answer[:3]))
      assert c.prompt_tokens == len(prompt)


def test_the_capacity_does_not_matter():
  few = dict(max_new_tokens=5, stop_ids=STOPS)
  default = generate(toy.target(), oracle(), PROMPTS, **few)
  tight = generate(
    toy.target(), oracle(), PROMPTS,
    capacity=max(LENGTHS) + 5 + SLOTS + 1, **few,
  )  # fmt: skip
  want = [tokens[:5] for tokens in truth()]
  assert toy.tokens_of(default) == toy.tokens_of(tight) == want


def test_capacity_buckets():
  sizes = [128 * n for n in (*range(1, 9), 12, 16, 20, 24, 28, 32)]
  assert sorted({capacity_bucket(n) for n in range(1, 4097)}) == sizes
  for tokens in range(1, 4097):
    assert capacity_bucket(tokens) == min(s for s in sizes if s >= tokens)
