"""Bugs that public implementations of this drafter family really had, and the
tests that would find them here.

Left out because nothing here can have them yet: paged or shared cache blocks,
drafters with a head of their own, schedules of compiled attention kernels, and
reports without a known cause. A drafter trained with another chat template or
thinking mode than it is served with is a matter of its data, not of the code;
the template itself is tested.

Below the table: tests that put such a bug in and see a golden comparison
fail, for those that no control of another file puts in.
"""

import ast
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone, dflash
from tests.drafters.runs import context_of, load_run, place_of

ROOT = pathlib.Path(__file__).parents[1]
ATOL = 5e-5

CAUGHT_BY = {
  'tapped layer off by one': (
    'tests/target/test_model.py::'
    'test_logits_and_layer_outputs_equal_transformers',
    'tests/drafters/test_backbone.py::test_tap_ids_are_the_published_ones',
    'tests/decode/test_draft_context.py::test_control_a_tap_off_by_one_shows',
  ),
  'last target layer among the taps': (
    'tests/decode/test_bad_input.py::test_a_drafter_of_another_shape',
    'tests/drafters/test_bad_checkpoint.py::'
    'test_taps_beyond_the_target_are_refused',
  ),
  'sliding window executed as full attention': (
    'tests/drafters/test_dflash.py::'
    'test_sliding_layers_with_every_spelling_of_is_causal',
    'tests/test_known_bugs.py::test_window_executed_as_full',
  ),
  'non-causal sliding window not symmetric, or its flag ignored': (
    'tests/drafters/test_dflash.py::'
    'test_sliding_layers_with_every_spelling_of_is_causal',
    'tests/test_known_bugs.py::test_causal_flag_ignored',
  ),
  'draft context of tokens that the target never ran': (
    'tests/drafters/test_backbone.py::test_rows_past_the_watermark_are_never_seen',
    'tests/decode/test_draft_context.py::test_control_wrong_context_shows',
    'tests/decode/test_generate.py::'
    'test_greedy_output_is_that_of_plain_decoding',
  ),
  'rows written past the capacity over valid ones': (
    'tests/target/test_model.py::test_rows_past_the_capacity_are_dropped',
    'tests/decode/test_generate.py::test_the_capacity_does_not_matter',
  ),
  'RoPE settings of the target in place of the drafter': (
    'tests/drafters/test_checkpoint.py::'
    'test_configs_are_read_from_every_published_place',
    'tests/test_known_bugs.py::test_rope_of_the_target',
  ),
  'partial RoPE unnoticed': (
    'tests/target/test_config.py::test_unsupported_config',
  ),
  'norm of the features loaded but not applied': (
    'tests/drafters/test_dflash.py::test_two_rounds_with_a_cached_context',
    'tests/test_known_bugs.py::test_feature_norm_not_applied',
  ),
  'anchor layout: proposals shifted by one': (
    'tests/drafters/test_dflash.py::test_two_rounds_with_a_cached_context',
    'tests/drafters/test_dspine.py::test_two_rounds_with_a_cached_context',
    'tests/drafters/test_dspark.py::test_two_rounds_with_a_cached_context',
    'tests/drafters/test_checkpoint.py::'
    'test_slot_layout_of_a_dflash_is_read_from_both_its_names',
    'tests/test_known_bugs.py::test_proposals_shifted_by_one',
  ),
  'draft ignores the temperature': (
    'tests/drafters/test_transition.py::'
    'test_temperature_is_per_request_and_zero_is_greedy',
    'tests/drafters/test_dflash.py::test_samples_with_the_law_that_it_states',
    'tests/verify/test_chain.py::'
    'test_real_drafters_state_the_law_they_draw_from',
  ),
  'p/q test of greedy proposals: q is not the law they were drawn from': (
    'tests/verify/test_chain.py::'
    'test_control_drafts_with_a_wrong_law_are_found',
    'tests/verify/test_chain.py::'
    'test_real_drafters_state_the_law_they_draw_from',
    'tests/drafters/test_dspine.py::test_samples_with_the_law_that_it_states',
  ),
  'sampled proposals called certain: exact, but fewer are accepted': (
    'tests/verify/test_chain.py::test_acceptance_rate',
    'tests/verify/test_chain.py::test_emitted_tokens_follow_the_target',
  ),
  'noise shared by draft, acceptance and residual, or by rounds': (
    'tests/verify/test_chain.py::test_control_wrong_verifiers_are_found',
    'tests/verify/test_sampling.py::'
    'test_keys_differ_by_seed_position_and_stream',
  ),
  'verification cut short depending on the tokens proposed': (
    'tests/verify/test_chain.py::'
    'test_control_drafts_with_a_wrong_law_are_found',
    'tests/verify/test_chain.py::'
    'test_empty_slots_and_truncated_verification_keep_the_law',
  ),
  'stale state across requests': (
    'tests/decode/test_generate.py::test_a_batch_leaves_nothing_behind',
    'tests/decode/test_draft_context.py::'
    'test_control_a_cache_left_over_from_another_request_shows',
  ),
  'draft rows and target rows of a batch misaligned': (
    'tests/decode/test_draft_context.py::'
    'test_every_round_drafts_from_the_context_so_far',
    'tests/decode/test_draft_context.py::test_control_wrong_context_shows',
    'tests/decode/test_generate.py::test_neighbours_do_not_matter',
    'tests/drafters/test_backbone.py::'
    'test_requests_of_a_batch_take_in_their_own_counts',
  ),
  'checkpoint routed to the class of another method': (
    'tests/drafters/test_bad_checkpoint.py::test_refused_in_one_line',
  ),
  'served with another chat template than the model was trained with': (
    'tests/target/test_tokenizer.py::test_chats_render_as_in_transformers',
  ),
  'greedy output called different where logits nearly tie': (
    'tests/decode/test_generate.py::'
    'test_plain_decoding_is_the_argmax_of_one_uncached_pass',
  ),
}


@pytest.mark.parametrize('bug', CAUGHT_BY)
def test_the_named_tests_exist(bug):
  for node in CAUGHT_BY[bug]:
    file, name = node.split('::')
    module = ast.parse((ROOT / file).read_text(encoding='utf-8'))
    tests = {x.name for x in module.body if isinstance(x, ast.FunctionDef)}
    assert name in tests, node


def error(mode='unset', shift=0, params=None, **config):
  """Largest error against the recorded states of a sliding DFlash.

  Args:
    mode: how the recorded config spells `is_causal`.
    shift: slots by which to shift what was computed.
    params, config: fields of the weights and of the config to change.
  """
  run = load_run('dflash-sliding')
  recorded = run.recorded('serve')
  causal = {'unset': None, 'false': False, 'true': True}[mode]
  cfg = dataclasses.replace(run.cfg, **({'causal': causal} | config))
  features = jnp.asarray(recorded['context_features'])

  @jax.jit
  def hidden(params):
    cache = backbone.draft_cache(cfg, 1, 32, jnp.float32)
    count_B = jnp.full((1,), features.shape[1])
    cache = backbone.extend(cfg, params, cache, features, count_B)
    place = place_of(cache, int(recorded['start_position']))
    anchor_BA = recorded['block_ids'][:, :1]
    return dflash.hidden_states(
      cfg, params, run.embed_VD, anchor_BA, context_of(cache), place
    )[0, 0]

  found = hidden(dataclasses.replace(run.params, **(params or {})))
  wanted = recorded[f'is_causal_{mode}.hidden_states'][0]
  return np.abs(np.roll(found, shift, axis=0) - wanted).max()


@pytest.mark.parametrize('mode', ('unset', 'false', 'true'))
def test_nothing_put_in(mode):
  assert error(mode) < ATOL


def test_window_executed_as_full():
  assert error(windows=(None, 99, 99)) > 100 * ATOL


@pytest.mark.parametrize('mode, wrong', (('false', True), ('unset', False)))
def test_causal_flag_ignored(mode, wrong):
  assert error(mode, causal=wrong) > 100 * ATOL


def test_rope_of_the_target():
  assert error(rope_base=1e6) > 100 * ATOL


def test_norm_epsilon_of_the_target():
  assert error(norm_eps=1e-6) > 10 * ATOL


def test_feature_norm_not_applied():
  ones = jnp.ones(load_run('dflash-sliding').cfg.width)
  assert error(params={'hidden_norm_D': ones}) > 100 * ATOL


def test_proposals_shifted_by_one():
  assert error(shift=1) > 100 * ATOL
