"""DSpine against the published reference, and the invariants of its paper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import backbone, dspine, factored
from spinejax.drafters.backbone import Place
from spinejax.drafters.loading import load_drafter
from spinejax.drafters.transition import walk
from spinejax.errors import InputError
from spinejax.top import top_k
from spinejax.verify.sampling import Sampling, Stream, round_keys
from tests.drafters import reference
from tests.drafters.runs import (
  both_tables,
  context_of,
  flash_hidden,
  load_run,
  logits_of,
  place_of,
  refined_with,
  spine_draft,
)

ATOL = 5e-5
RNG = np.random.default_rng(0)


def recorded_round(run, i):
  """A recorded round and the cache it starts from."""
  expected = run.recorded('serve')
  want = {
    k.removeprefix(f'round{i}.'): v
    for k, v in expected.items()
    if k.startswith(f'round{i}.')
  }
  return want, run.cache(want['context_features'])


def drafted(run, want, cache, cfg=None, params=None):
  """Hidden, pre-injection states [K, D] and features [L, K, R] of a round."""
  out = spine_draft(
    run.cfg if cfg is None else cfg,
    run.params if params is None else params,
    run.embed_VD,
    want['anchor_id'][:, None],
    context_of(cache),
    place_of(cache, int(want['start_position'])),
  )
  return out[0][0, 0], out[1][0, 0], out[2][:, 0, 0]


@pytest.mark.parametrize('name', ['dspine-b6', 'dspine-separate-codes'])
def test_two_rounds_with_a_cached_context(name):
  run = load_run(name)
  cfg, params, cache = run.cfg, run.params, run.cache()
  with_tables = dataclasses.replace(
    params, tables=factored.make_tables(cfg, params, run.head_VD)
  )
  fast = dataclasses.replace(
    run, model=dataclasses.replace(run.model, params=with_tables)
  )
  for i in (1, 2):
    want, fresh = recorded_round(run, i)
    start = int(want['start_position'])
    # The reference has no cache; here only the new rows are taken in.
    known = int(cache.length_B[0])
    cache = run.extend(cache, want['context_features'][:, known:])
    np.testing.assert_allclose(
      cache.k[-1][:, :, :start], fresh.k[-1][:, :, :start], atol=1e-5
    )
    np.testing.assert_array_equal(
      [[*want['anchor_id'], *[cfg.mask_id] * cfg.slots]], want['block_ids']
    )
    hidden, pre, features = drafted(run, want, cache)
    np.testing.assert_allclose(hidden, want['hidden_states'][0], atol=ATOL)
    np.testing.assert_allclose(pre, want['pre_injection'][0], atol=ATOL)
    np.testing.assert_allclose(
      features, want['layer_features'][:, 0], atol=ATOL
    )
    logits = logits_of(cfg, hidden, run.head_VD)
    np.testing.assert_allclose(logits, want['base_logits'][0], atol=ATOL)
    found = top_k(logits[None, 1:], cfg.candidates)[1]
    np.testing.assert_array_equal(np.sort(found), np.sort(want['candidates']))
    for scores in both_tables(
      cfg,
      params,
      run.head_VD,
      pre[None, 1:],
      want['candidates'],
      want['anchor_id'],
    ):
      np.testing.assert_allclose(scores, want['transition_scores'], atol=ATOL)
      tokens_BS, _ = walk(scores, want['candidates'], None, Sampling.make(1))
      np.testing.assert_array_equal(tokens_BS, want['greedy_walk'])
    proposal = fast.propose(cache, want['anchor_id'], start)
    np.testing.assert_array_equal(proposal.tokens_BS, want['greedy_walk'])


@pytest.mark.parametrize('replaced', ['', 'replaced_'])
def test_many_anchors_of_a_training_batch(spine, replaced):
  expected = spine.recorded('train')
  anchors_BA = jnp.asarray(expected['anchors'])
  cache = spine.cache(expected['context_features'])
  gold_BAS = expected['labels'][..., :-1]
  gold = {}
  if replaced:
    gold = {
      'gold_BAS': gold_BAS,
      'replace_BA': expected['replace_mask'].astype(bool),
      'replace_layers': 3,
    }
  hidden, pre, features = spine_draft(
    spine.cfg,
    spine.params,
    spine.embed_VD,
    expected['block_ids'][..., 0],
    context_of(cache),
    Place(anchors_BA, anchors_BA),
    **gold,
  )
  kept = expected['block_keep'].astype(bool)
  np.testing.assert_allclose(
    hidden[kept], expected[f'{replaced}hidden_states'][kept], atol=ATOL
  )
  np.testing.assert_allclose(
    features[:, kept],
    expected[f'{replaced}layer_features'][:, kept],
    atol=ATOL,
  )
  if not replaced:
    np.testing.assert_allclose(
      pre[kept], expected['pre_injection'][kept], atol=ATOL
    )
    refined = refined_with(spine.cfg, spine.params, pre[:, :, 1:], gold_BAS)
    np.testing.assert_allclose(
      refined[kept], expected['refined_hidden_gold'][kept], atol=ATOL
    )


def test_factored_scores_are_the_direct_ones(spine):
  cfg = dataclasses.replace(spine.cfg, output_multiplier=0.7, softcap=4.0)
  w = {k: v.astype(np.float64) for k, v in spine.recorded('model').items()}
  head_VD = np.asarray(spine.head_VD, np.float64)
  pre = RNG.normal(size=(2, 5, 64)) * 10.0 ** RNG.integers(-2, 3, (2, 5, 1))
  candidates = RNG.integers(0, 97, (2, 5, 5)).astype(np.int32)
  anchor = np.array([3, 4])
  direct, factored = both_tables(
    cfg, spine.params, spine.head_VD, jnp.float32(pre), candidates, anchor
  )
  for b, j in np.ndindex(2, 5):
    before = candidates[b, j - 1] if j else np.repeat(anchor[b], 5)
    where = (w, cfg, head_VD, pre[b, j], before, candidates[b, j])
    exact = reference.pair_scores(*where)
    np.testing.assert_allclose(
      reference.factored_scores(*where), exact, atol=1e-12
    )
    exact = 4 * np.tanh(0.7 * exact / 4)
    np.testing.assert_allclose(direct[b, j], exact, atol=1e-4)
    np.testing.assert_allclose(factored[b, j], exact, atol=1e-4)


def test_zero_writes_are_a_causal_dflash(spine):
  want, cache = recorded_round(spine, 1)
  inj = spine.params.injection
  silent = dataclasses.replace(
    inj, writes_DM=tuple(0 * write for write in inj.writes_DM)
  )
  params = dataclasses.replace(spine.params, injection=silent)
  hidden, _, _ = drafted(spine, want, cache, params=params)
  expected = flash_hidden(
    spine.cfg,
    spine.params.backbone,
    spine.embed_VD,
    want['anchor_id'][:, None],
    context_of(cache),
    place_of(cache, int(want['start_position'])),
  )
  np.testing.assert_allclose(hidden, expected[0, 0], atol=1e-5)
  assert np.abs(hidden - want['hidden_states'][0]).max() > 0.1


def test_slot_sees_nothing_of_later_slots_and_other_blocks(spine, monkeypatch):
  """Slots as they leave the embedding are changed one by one."""
  _, cache = recorded_round(spine, 1)
  block_BAKD = RNG.normal(size=(1, 2, 6, 64)).astype(np.float32)

  @jax.jit
  def run(block_BAKD):
    monkeypatch.setattr(backbone, 'embed_block', lambda *_: block_BAKD)
    out = dspine.draft(
      spine.cfg,
      spine.params,
      spine.embed_VD,
      jnp.array([[5, 6]]),
      context_of(cache),
      Place(jnp.array([[11, 11]]), jnp.array([[11, 11]])),
    )
    return out.hidden_BAKD

  before = run(block_BAKD)
  for slot in range(6):
    changed = block_BAKD.copy()
    changed[0, 1, slot] += 1
    moved = np.abs(run(changed) - before).max(-1)[0]
    np.testing.assert_allclose(moved[0], 0, atol=1e-5)
    np.testing.assert_allclose(moved[1, :slot], 0, atol=1e-5)
    assert np.all(moved[1, slot:] > 1e-3)


def test_injection_leaves_slot_0_and_tells_it_to_nobody(spine):
  inj, codes = spine.params.injection, spine.params.codes_VR
  h = RNG.normal(size=(2, 3, 6, 64)).astype(np.float32)
  anchor = dspine.code(codes, RNG.integers(0, 97, (2, 3)), jnp.float32)
  out = dspine.inject(inj, 1, h, anchor)
  np.testing.assert_array_equal(out[:, :, 0], h[:, :, 0])
  assert np.all(np.abs(out - h)[:, :, 1:].max(-1) > 1e-3)
  other = h.copy()
  other[:, :, 0] += 1
  np.testing.assert_array_equal(
    dspine.inject(inj, 1, other, anchor)[:, :, 1:], out[:, :, 1:]
  )
  # Predecessors are read before any is written.
  f = dspine.feature(h[:, :, 2], inj.readouts_RD[1])
  expected = dspine.write(
    inj, 1, h[:, :, 3], dspine.feature(h[:, :, 3], inj.readouts_RD[1]), f
  )
  np.testing.assert_allclose(out[:, :, 3], expected, atol=1e-5)


@pytest.mark.parametrize('i', [1, 2])
def test_refinement_of_slot_1_is_what_the_parallel_pass_had(spine, i):
  want, cache = recorded_round(spine, i)
  hidden, pre, _ = drafted(spine, want, cache)
  refined = refined_with(spine.cfg, spine.params, pre[1], want['anchor_id'][0])
  np.testing.assert_allclose(refined, hidden[1], atol=1e-5)


@pytest.mark.parametrize('name', ['dspine-b6', 'dspine-separate-codes'])
def test_selection_from_the_table_is_sequential_refinement(name):
  run = load_run(name)
  want, cache = recorded_round(run, 2)
  hidden, pre, _ = drafted(run, want, cache)
  logits = np.asarray(logits_of(run.cfg, hidden, run.head_VD))
  head_VD = np.asarray(run.head_VD)
  before, chosen = want['anchor_id'][0], []
  for j in range(1, run.cfg.block):
    candidates = np.argsort(-logits[j])[: run.cfg.candidates]
    refined = refined_with(run.cfg, run.params, pre[j], before)
    before = candidates[np.argmax(head_VD[candidates] @ refined)]
    chosen.append(before)
  start = int(want['start_position'])
  proposal = run.propose(cache, want['anchor_id'], start)
  np.testing.assert_array_equal(proposal.tokens_BS[0], chosen)
  # Without refinement the choice is another one.
  assert np.any(np.argmax(logits[1:], -1) != chosen)


def test_shorter_block_has_the_same_leading_proposals(spine):
  want, cache = recorded_round(spine, 1)
  start = int(want['start_position'])
  model = load_drafter(spine.path, spine.target, block=4)
  short = dataclasses.replace(spine, model=model)
  hidden, _, _ = drafted(short, want, cache)
  np.testing.assert_allclose(hidden, want['hidden_states'][0, :4], atol=ATOL)
  np.testing.assert_array_equal(
    short.propose(cache, want['anchor_id'], start).tokens_BS,
    want['greedy_walk'][:, :3],
  )


def test_samples_with_the_law_that_it_states(spine):
  B = 500
  want, _ = recorded_round(spine, 1)
  cache = spine.cache(np.repeat(want['context_features'], B, axis=0))
  keys_B = round_keys(
    jnp.arange(B, dtype=jnp.uint32), jnp.zeros(B, int), Stream.DRAFT
  )
  sampling = dataclasses.replace(
    Sampling.make(B, 1.0), temperature_B=jnp.ones(B).at[0].set(0)
  )
  found = spine.propose(
    cache,
    np.repeat(want['anchor_id'], B),
    int(want['start_position']),
    sampling,
    keys_B,
  )
  np.testing.assert_array_equal(found.tokens_BS[0], want['greedy_walk'][0])
  same = found.law.ids_BSN == found.tokens_BS[..., None]
  assert np.all(same.sum(-1) == 1)
  np.testing.assert_allclose(found.law.probs_BSN.sum(-1), 1, atol=1e-5)
  q_BS = np.sum(np.where(same, found.law.probs_BSN, 0), -1)
  assert np.all(q_BS[0] == 1)
  # Slot 1 has one law: how often each token came must be its probability.
  scores = want['transition_scores'][0, 0, 0]
  probs = np.exp(scores - scores.max())
  probs /= probs.sum()
  for token, p in zip(want['candidates'][0, 0], probs, strict=True):
    seen = (found.tokens_BS[1:, 0] == token).mean()
    assert abs(seen - p) < 4 * np.sqrt(p * (1 - p) / B) + 1e-3


def test_position_comes_from_the_history_not_from_the_draft_cache(spine):
  want, _ = recorded_round(spine, 1)
  cache = spine.cache(want['context_features'][:, :8])
  keys_B = round_keys(jnp.zeros(1, jnp.uint32), jnp.zeros(1, int), Stream.DRAFT)
  candidates = {}
  for start in (8, 14):
    here = want | {'start_position': start}
    hidden, _, _ = drafted(spine, here, cache)
    logits = logits_of(spine.cfg, hidden, spine.head_VD)
    candidates[start] = top_k(logits[1:], spine.cfg.candidates)[1]
  found = spine.propose(
    cache, want['anchor_id'], 14, Sampling.make(1, 1.0), keys_B
  )
  np.testing.assert_array_equal(found.law.ids_BSN[0], candidates[14])
  assert np.any(candidates[14] != candidates[8])


def test_gradients_are_finite_at_a_zero_state(spine):
  inj, codes = spine.params.injection, spine.params.codes_VR
  h = RNG.normal(size=(1, 2, 6, 64)).astype(np.float32)
  h[0, 0, 2] = 0  # a receiver and a predecessor
  h[0, 1] = 0
  anchor = dspine.code(codes, jnp.array([[3, 4]]), jnp.float32)

  def loss(h, inj):
    params = dataclasses.replace(spine.params, injection=inj)
    out = dspine.inject(inj, 0, h, anchor)
    read = dspine.feature(out, inj.readouts_RD[0])
    u = dspine.code(codes, jnp.full((1, 2, 6), 7), jnp.float32)
    refined = dspine.refine(spine.cfg, params, out, u)
    return jnp.sum(jnp.sin(read)) + jnp.sum(jnp.sin(refined))

  grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(h, inj)
  for leaf in jax.tree.leaves(grads):
    assert np.all(np.isfinite(leaf))
  assert np.abs(grads[1].message_MR).max() > 0


def test_bfloat16_weights_with_float32_codes(spine):
  want, cache = recorded_round(spine, 1)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), spine.params)
  params = dataclasses.replace(half, codes_VR=spine.params.codes_VR)
  embed = spine.embed_VD.astype(jnp.bfloat16)
  head = spine.head_VD.astype(jnp.bfloat16)
  cache = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16) if x.ndim > 1 else x, cache
  )
  hidden, pre, _ = spine_draft(
    spine.cfg,
    params,
    embed,
    want['anchor_id'][:, None],
    context_of(cache),
    place_of(cache, int(want['start_position'])),
  )
  assert hidden.dtype == pre.dtype == jnp.bfloat16
  np.testing.assert_allclose(
    hidden[:, 0].astype(np.float32), want['hidden_states'], atol=0.15
  )
  direct, factored = both_tables(
    spine.cfg,
    params,
    head,
    pre[:, 0, 1:],
    want['candidates'],
    want['anchor_id'],
  )
  assert direct.dtype == factored.dtype == jnp.float32
  np.testing.assert_allclose(direct, want['transition_scores'], atol=0.5)
  np.testing.assert_allclose(factored, direct, atol=1e-3)


@pytest.mark.parametrize(
  'change, message',
  [
    ({'rank': 65}, r'rank = 65 exceeds min\(width, vocab - 1\) = 64'),
    ({'candidates': 98}, 'candidates = 98 of a vocabulary of 97'),
    ({'candidates': 0}, 'candidates = 0'),
  ],
)
def test_config_refuses(spine, change, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(spine.cfg, **change)
