"""Shapes: published parameter counts, rotary frequencies, config.json."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.target import (
  PRESETS,
  RopeScaling,
  TargetConfig,
  preset,
  random_params,
)
from spinejax.target.config import config_of_hf, rope_frequencies

# Weights of the published checkpoints, tied embeddings counted once.
PUBLISHED = {
  'smollm2-135m': 134_515_008,
  'smollm2-360m': 361_821_120,
  'smollm2-1.7b': 1_711_376_384,
  'qwen3-0.6b': 596_049_920,
  'qwen3-1.7b': 1_720_574_976,
  'qwen3-4b': 4_022_468_096,
  'qwen3-8b': 8_190_735_360,
  'llama-3.2-1b': 1_235_814_400,
  'llama-3.2-3b': 3_212_749_824,
  'llama-3.1-8b': 8_030_261_248,
  'qwen2.5-0.5b': 494_032_768,
  'qwen2.5-1.5b': 1_543_714_304,
  'qwen2.5-3b': 3_085_938_688,
  'qwen2.5-7b': 7_615_616_512,
  'llama-2-7b': 6_738_415_616,
  'tinyllama-1.1b': 1_100_048_384,
  'mistral-7b': 7_248_023_552,
  'yi-6b': 6_061_035_520,
  'deepseek-llm-7b': 6_910_365_696,
  # Less three tokens, see there.
  'granite-3.1-2b': 2_533_531_648 - 3 * 2048,
  'granite-3.1-8b': 8_170_848_256 - 3 * 4096,
}


def hf_config(golden, name, **changes):
  return json.loads((golden / name / 'config.json').read_text()) | changes


@pytest.mark.parametrize('name', PRESETS)
def test_presets_have_the_published_parameters(name):
  assert preset(name).parameters == PUBLISHED[name]


def test_unknown_preset(refused):
  names = ', '.join(PRESETS)
  with refused(f"unknown preset 'qwen3-9b'; expected one of {names}"):
    preset('qwen3-9b')


@pytest.mark.parametrize(
  'changes',
  [{}, {'tied': True}, {'qkv_bias': True}, {'qk_norm': True, 'kv_heads': 4}],
)
def test_parameters_are_those_of_the_weights(changes):
  cfg = TargetConfig(
    family='llama', vocab=50, width=16, layers=2, heads=4, kv_heads=2,
    head_dim=6, ffn=24,
  )  # fmt: skip
  cfg = dataclasses.replace(cfg, **changes)
  weights = jax.eval_shape(lambda: random_params(cfg, jax.random.key(0)))
  count = sum(x.size for x in jax.tree.leaves(weights))
  # Shapes have no identity: a tied head is there twice.
  assert count - cfg.tied * weights.head_VD.size == cfg.parameters


def test_heads_must_share_kv_heads_evenly(refused):
  with refused('heads = 32 is not a multiple of kv_heads = 5'):
    dataclasses.replace(preset('qwen3-8b'), kv_heads=5)


def test_rope_frequencies_equal_transformers(golden):
  expected = load_file(golden / 'llama' / 'expected.safetensors')
  cfg = config_of_hf(hf_config(golden, 'llama'))
  assert cfg.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 16)
  frequencies = rope_frequencies(8, cfg.rope_base, cfg.rope_scaling)
  np.testing.assert_allclose(frequencies, expected['inv_freq'], rtol=1e-6)
  llama = preset('llama-3.2-1b')
  frequencies = rope_frequencies(
    llama.head_dim, llama.rope_base, llama.rope_scaling
  )
  wanted = expected['inv_freq_llama_3_2_1b']
  np.testing.assert_allclose(frequencies, wanted, rtol=1e-6)


def test_rope_frequencies_without_scaling():
  wanted = [1.0, 0.1, 0.01, 0.001]
  np.testing.assert_allclose(rope_frequencies(8, 1e4), wanted, rtol=1e-12)


@pytest.mark.parametrize('name', ['llama', 'qwen2', 'qwen3'])
def test_both_spellings_of_config_json(golden, name):
  old = json.loads((golden / name / 'config_v4.json').read_text())
  assert config_of_hf(old) == config_of_hf(hf_config(golden, name))


def test_defaults_of_absent_and_null_fields(golden):
  hf = hf_config(golden, 'qwen2', num_key_value_heads=None, head_dim=None)
  for name in ('max_position_embeddings', 'rope_parameters', 'hidden_act'):
    del hf[name]
  cfg = config_of_hf(hf)
  assert (cfg.kv_heads, cfg.head_dim, cfg.group) == (4, 8, 1)
  assert (cfg.max_position, cfg.rope_base) == (8192, 1e4)
  assert cfg.qkv_bias and cfg.tied and not cfg.qk_norm


UNSUPPORTED = {
  'rope_scaling': (
    {'rope_parameters': {'rope_type': 'yarn', 'factor': 4.0}},
    "rope scaling 'yarn' is not supported; expected default or llama3",
  ),
  'rope_scaling_v4': (
    {'rope_parameters': None, 'rope_scaling': {'type': 'dynamic'}},
    "rope scaling 'dynamic' is not supported; expected default or llama3",
  ),
  'rope_factor': (
    {'rope_parameters': {'rope_type': 'llama3'}},
    "field 'factor' is missing",
  ),
  'partial_rotary': (
    {'partial_rotary_factor': 0.5},
    'partial_rotary_factor other than 1 is not supported',
  ),
  'hidden_act': (
    {'hidden_act': 'gelu'},
    "hidden_act 'gelu' is not supported; expected silu",
  ),
  'family': (
    {'model_type': 'gemma3'},
    "model_type 'gemma3' is not supported; expected one of llama, qwen2, qwen3",
  ),
  'no_family': (
    {'model_type': None},
    'model_type None is not supported; expected one of llama, qwen2, qwen3',
  ),
  'attention_bias': (
    {'attention_bias': True},
    'attention_bias true is not supported for llama',
  ),
  'mlp_bias': ({'mlp_bias': True}, 'mlp_bias true is not supported'),
  'quantised': (
    {'quantization_config': {'quant_method': 'fp8'}},
    'quantization_config is not supported; expected float32, bfloat16 or '
    'float16 weights',
  ),
  'missing': ({'vocab_size': None}, "field 'vocab_size' is missing"),
  'not_a_number': (
    {'hidden_size': '32'},
    "hidden_size = '32'; expected a positive whole number",
  ),
  'zero': (
    {'num_attention_heads': 0},
    'num_attention_heads = 0; expected a positive whole number',
  ),
}


@pytest.mark.parametrize('case', UNSUPPORTED)
def test_unsupported_config(golden, refused, case):
  changes, message = UNSUPPORTED[case]
  with refused(f'config.json: {message}'):
    config_of_hf(hf_config(golden, 'llama', **changes))


SLIDING = {'use_sliding_window': True, 'sliding_window': 64}


@pytest.mark.parametrize(
  'changes',
  [
    {'layer_types': ['full_attention', 'sliding_attention']},
    {'layer_types': None, 'max_window_layers': 2},  # transformers 4
  ],
)
def test_sliding_window_layers_are_refused(golden, refused, changes):
  message = 'config.json: sliding-window layers are not supported in a target'
  with refused(message):
    config_of_hf(hf_config(golden, 'qwen2', **SLIDING, **changes))


def test_a_sliding_window_that_no_layer_uses_is_accepted(golden):
  cfg = config_of_hf(hf_config(golden, 'qwen2'))
  unused = {'layer_types': None, 'max_window_layers': 3}
  assert config_of_hf(hf_config(golden, 'qwen2', **SLIDING, **unused)) == cfg
  hf = hf_config(golden, 'qwen2', sliding_window=64, max_window_layers=2)
  assert config_of_hf(hf) == cfg
