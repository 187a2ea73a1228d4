"""The drafter inside the loop sees the context that it was trained on.

Wrong context never shows in the output, only in the acceptance. So every
round's proposals are compared with those of a drafter that reads the whole
context afresh, in a ragged batch whose requests keep runs of all lengths; and
known ways to get the context wrong must show.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode import round as rounds
from spinejax.decode.generate import start
from spinejax.drafters import backbone, dspine
from spinejax.drafters.base import Drafter, DraftModel, History, TargetView
from spinejax.target.model import forward, init_cache
from spinejax.verify.sampling import Sampling
from tests.decode import toy

PROMPTS = toy.prompts(1, 6, 3, 11)
NEW = 14
T = 32


def propose(cfg, params, view, cache, history, anchor_B, keys_B, sampling):
  """Proposes known answers; shows what DSpine would propose as confidence."""
  rest = (view, cache, history, anchor_B, keys_B, sampling)
  seen = dspine.propose(cfg, params[0], *rest)
  known = toy.foresee(toy.OracleConfig(wrong_every=4), params[1], *rest)
  return dataclasses.replace(
    known, confidence_BS=seen.tokens_BS.astype(jnp.float32)
  )


# Ways to hand the drafter a wrong context; which one is a traced number, so
# that all share one compiled program.
FAULTS = (
  'none',
  'rows of another request',  # slots after a batch was condensed
  'rows of the token before',
  'tapped layers in another order',
  'rows that were never run',  # the watermark moves, nothing is written
  'no row of the last kept token',
)


def extend(cfg, params, cache, features_BKP, count_B):
  """DSpine's, with the fault that `params` names."""
  spine, _, fault = params
  left, right = jnp.split(features_BKP, 2, axis=-1)
  features_BKP = jnp.stack(
    [
      features_BKP,
      jnp.roll(features_BKP, 1, axis=0),
      jnp.roll(features_BKP, 1, axis=1),
      jnp.concatenate([right, left], axis=-1),
    ]
  )[jnp.where(fault < 4, fault, 0)]
  short_B = jnp.maximum(count_B - 1, 0)
  written = backbone.extend_backbone(
    cfg, spine, cache, features_BKP, jnp.where(fault == 5, short_B, count_B)
  )
  return jax.tree.map(
    lambda old, new: jnp.where(fault == 4, old, new),
    cache.advance(count_B),
    written,
  )


@jax.jit
def afresh(state):
  """What DSpine proposes after all known tokens, read in one piece."""
  target, draft = toy.target(), toy.dspine_model()
  cfg, B = draft.drafter.cfg, len(PROMPTS)
  out = forward(
    target.cfg,
    target.params,
    state.tokens_BT,
    init_cache(target.cfg, B, T),
    cfg.taps,
  )
  cache = backbone.extend_backbone(
    cfg,
    draft.params,
    backbone.draft_cache(cfg, B, T, jnp.float32),
    out.features_BQP,
    state.length_B - 1,
  )
  return dspine.propose(
    cfg,
    draft.params,
    TargetView(target.params.embed_VD, target.params.head_VD),
    cache,
    History(state.tokens_BT, state.length_B),
    state.anchor_B,
    None,
    Sampling.make(B),
  ).tokens_BS


STEP = jax.jit(rounds.step, static_argnums=(0, 1))
PREFILL = jax.jit(rounds.prefill, static_argnums=(0, 1, 4))


def model(known_BT, fault='none'):
  """The drafter above, with the weights of DSpine and known answers."""
  spine = toy.dspine_model()
  drafter = Drafter(
    'shown', spine.drafter.cfg, backbone.draft_cache, extend, propose
  )
  params = (spine.params, known_BT, jnp.int32(FAULTS.index(fault)))
  return DraftModel(drafter, params)


def weights(draft):
  return rounds.Params(toy.target().params, draft.params)


def fresh_state():
  draft = model(None)
  return start(
    toy.target(), draft, PROMPTS, NEW, stop_ids=toy.STOPS, capacity=T
  )


def prefilled(state, draft, prefill=PREFILL):
  return prefill(toy.target().cfg, draft.drafter, weights(draft), state, 12)


def decoded(state, draft, step=STEP):
  """Each round, with the state before it."""
  cfg, sampling = toy.target().cfg, Sampling.make(len(PROMPTS))
  while not state.done_B.all():
    done = step(cfg, draft.drafter, weights(draft), state, sampling)
    yield state, done
    state = done.state


@functools.cache
def known():
  """The answers: what the loop emits, whatever is proposed."""
  blind = model(jnp.zeros((len(PROMPTS), T), jnp.int32))
  *_, (_, last) = decoded(prefilled(fresh_state(), blind), blind)
  return last.state.tokens_BT


def disagreement(state, draft, step=STEP):
  """Share of a decoding's proposals that differ from `afresh`, and the
  lengths that were accepted."""
  wrong, kept = [], set()
  for before, done in decoded(state, draft, step):
    live_B = ~np.asarray(before.done_B)
    differ_BS = done.proposal.confidence_BS != afresh(before)
    wrong.append(np.asarray(differ_BS)[live_B].mean())
    kept |= set(np.asarray(done.verdict.accepted_B)[live_B].tolist())
  return np.mean(wrong), kept


def test_every_round_drafts_from_the_context_so_far():
  draft = model(known())
  wrong, kept = disagreement(prefilled(fresh_state(), draft), draft)
  assert wrong == 0
  assert len(kept) >= 3


@functools.partial(jax.jit, static_argnums=0)
def plain_rounds(drafter, params, state, most):
  """Some rounds that draft nothing."""
  return rounds.plain(
    toy.target().cfg, drafter, params, state, Sampling.make(len(PROMPTS)),
    lambda _, ran: ran < most,
  )[0]  # fmt: skip


@pytest.mark.parametrize('fault', ('none', 'rows of the token before'))
def test_drafting_is_taken_up_again_after_plain_rounds(fault):
  """1 to K of them, behind rounds that left any number of rows pending."""
  draft = model(known(), fault)
  wrong, most = [], 0

  def step(cfg, drafter, params, state, sampling):
    nonlocal most
    most = most % 5 + 1
    between.append(plain_rounds(drafter, params, state, most))
    return STEP(cfg, drafter, params, between[-1], sampling)

  between = []
  for _, done in decoded(prefilled(fresh_state(), draft), draft, step):
    live_B = ~np.asarray(between[-1].done_B)
    differ_BS = done.proposal.confidence_BS != afresh(between[-1])
    wrong += np.asarray(differ_BS)[live_B].tolist()
  np.testing.assert_array_equal(done.state.tokens_BT, known())
  assert (np.mean(wrong) > 0.2) == (fault != 'none')


@pytest.mark.parametrize('fault', FAULTS[1:])
def test_control_wrong_context_shows(fault):
  draft = model(known(), fault)
  wrong, _ = disagreement(prefilled(fresh_state(), draft), draft)
  assert wrong > 0.2


def test_control_a_tap_off_by_one_shows(monkeypatch):
  draft = model(known())

  def shifted(cfg, params, tokens_BQ, cache, taps, packing=None):
    taps = tuple(t + 1 for t in taps)
    return forward(cfg, params, tokens_BQ, cache, taps, packing)

  def apart(function, *static):  # from what was traced before
    return jax.jit(lambda *args: function(*args), static_argnums=static)

  monkeypatch.setattr(rounds, 'forward', shifted)
  state = prefilled(fresh_state(), draft, apart(rounds.prefill, 0, 1, 4))
  wrong, _ = disagreement(state, draft, apart(rounds.step, 0, 1))
  assert wrong > 0.2


def test_control_a_cache_left_over_from_another_request_shows():
  draft = model(known())
  left = prefilled(fresh_state(), draft)
  stale = dataclasses.replace(
    fresh_state(),
    draft_cache=left.draft_cache,
    tokens_BT=jnp.roll(left.tokens_BT, 1, 0),
    prompt_length_B=jnp.roll(left.length_B, 1),
    length_B=jnp.roll(left.length_B, 1),
    anchor_B=jnp.roll(left.anchor_B, 1),
  )
  wrong, _ = disagreement(prefilled(stale, draft), draft)
  assert wrong > 0.2
