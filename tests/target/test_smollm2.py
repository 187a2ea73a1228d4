"""A real target end to end: SmolLM2-135M from GGUF against transformers."""

import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.target import forward, init_cache, preset, unembed

pytestmark = pytest.mark.usefixtures('optimized')
TAPS = (1, 8, 14, 20, 27)
COLUMNS = 64  # of a layer's output that the fixtures keep
ANSWER = 39  # position of the answer's first token


@pytest.fixture(scope='module')
def expected(golden):
  return load_file(golden / 'smollm2' / 'expected.safetensors')


@pytest.fixture(scope='module')
def text(golden):
  return json.loads((golden / 'smollm2' / 'expected_text.json').read_text())


@pytest.fixture(scope='module')
def computed(smollm2, expected, optimized):
  """Logits [T, V] and tapped features [T, taps, D] of the 64 positions."""
  cfg, params = smollm2.cfg, smollm2.params

  @functools.partial(jax.jit, static_argnums=0)
  def run(cfg, params, tokens_BQ, cache):
    out = forward(cfg, params, tokens_BQ, cache, TAPS)
    return unembed(out.hidden_BQD, params.head_VD), out.features_BQP

  tokens = expected['input_ids']
  logits, features = run(cfg, params, tokens, init_cache(cfg, 1, 64))
  shape = (tokens.size, len(TAPS), cfg.width)
  return np.asarray(logits[0]), np.asarray(features).reshape(shape)


def test_shape_is_the_published_one(smollm2):
  assert smollm2.cfg == preset('smollm2-135m')
  assert smollm2.name == 'smollm2-135m'
  leaves = {id(x): x for x in jax.tree.leaves(smollm2.params)}.values()
  assert sum(x.size for x in leaves) == smollm2.cfg.parameters
  assert smollm2.params.head_VD is smollm2.params.embed_VD


def test_logits_equal_transformers(computed, expected):
  logits, _ = computed
  columns = expected['columns']
  np.testing.assert_allclose(
    logits[:, columns], expected['logits'], atol=1e-3, rtol=0
  )
  top = logits.max(-1, keepdims=True).astype(np.float64)
  logsumexp = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
  np.testing.assert_allclose(
    logsumexp, expected['logsumexp'], atol=1e-3, rtol=0
  )


def test_argmax_and_its_lead_equal_transformers(computed, expected):
  logits, _ = computed
  np.testing.assert_array_equal(logits.argmax(-1), expected['argmax'])
  top2 = np.sort(logits, axis=-1)[:, -2:]
  np.testing.assert_allclose(
    top2[:, 1] - top2[:, 0], expected['top2_gap'], atol=1e-3
  )


@pytest.mark.parametrize('tap', range(len(TAPS)))
def test_layer_outputs_equal_transformers(computed, expected, tap):
  _, features = computed
  np.testing.assert_allclose(
    features[:, tap, :COLUMNS],
    expected[f'layer_output.{TAPS[tap]}'],
    atol=1e-3,
    rtol=1e-4,
  )


def test_texts_encode_and_decode_as_published(smollm2, text):
  tokenizer = smollm2.tokenizer
  assert tokenizer.size == text['size'] == smollm2.cfg.vocab
  assert text['eos_id'] in tokenizer.stop_ids
  for case in text['texts']:
    assert tokenizer.encode(case['text']) == case['ids']
    decoded = tokenizer.decode(case['ids'], keep_special=True)
    assert decoded == case['decoded']
    decoded = tokenizer.decode(case['ids'])
    assert decoded == case['decoded_without_special']


def test_chats_render_as_published(smollm2, text):
  tokenizer = smollm2.tokenizer
  cases = [c for c in text['chats'] if c['add_generation_prompt']]
  assert cases
  for case in cases:
    rendered = tokenizer.render(case['messages'])
    assert rendered == case['rendered']
    assert tokenizer.encode(rendered) == case['ids']


def test_turns_are_a_chat_of_user_and_assistant(smollm2, text):
  (case,) = [
    c
    for c in text['chats']
    if c['add_generation_prompt'] and len(c['messages']) == 3
  ]
  turns = [m['content'] for m in case['messages']]
  assert smollm2.tokenizer.encode_chat(turns) == case['ids']


def test_the_whole_answer_is_its_own_greedy_decoding(computed, expected):
  # The fixtures' tokens are a question and the answer that the model gave.
  logits, _ = computed
  tokens = expected['input_ids'][0]
  greedy = logits.argmax(-1)[ANSWER - 1 : -1]
  np.testing.assert_array_equal(greedy, tokens[ANSWER:])
