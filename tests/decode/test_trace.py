"""Rounds seen from the host, and what a DSpine block holds."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.injection.reference import safe_norm
from spinejax.decode import trace
from spinejax.drafters import dspine
from spinejax.drafters.inside import look_inside
from tests.decode import toy

NEW = 12


@pytest.fixture(scope='module')
def rounds():
  of, draft = toy.target(), toy.dspine_model()
  (prompt,) = toy.prompts(5)
  state = trace.prefilled(of, draft, prompt, NEW)
  return of, draft, prompt, trace.trace(of, draft, state, 99)


def test_rounds_are_those_of_generate(rounds):
  of, draft, prompt, seen = rounds
  (answer,) = toy.answers(of, draft, [prompt], max_new_tokens=NEW)
  assert np.concatenate([one.emitted for one in seen]).tolist() == answer
  for one in seen[:-1]:
    assert len(one.emitted) == one.accepted + 1
    np.testing.assert_array_equal(
      one.emitted[:-1], one.proposed_S[: one.accepted]
    )


def test_states_before_rounds_stay_valid(rounds):
  of, draft, _, seen = rounds
  (again,) = trace.trace(of, draft, seen[1].state, 1)
  np.testing.assert_array_equal(again.emitted, seen[1].emitted)


def test_rounds_are_checked(rounds, refused):
  of, draft, _, seen = rounds
  with refused('rounds = 0, expected ...'):
    trace.trace(of, draft, seen[0].state, 0)


def test_inside_is_what_is_proposed(rounds):
  of, draft, _, seen = rounds
  cfg = draft.drafter.cfg
  for one in seen[:3]:
    inside = look_inside(of.params, draft, one.state)
    np.testing.assert_array_equal(inside.walk_S, one.proposed_S)
    np.testing.assert_array_equal(inside.alone_S, inside.said_LS[-1])
    # A slot's best alone is its first candidate.
    np.testing.assert_array_equal(inside.alone_S, inside.candidates_SN[:, 0])
    np.testing.assert_array_equal(
      inside.before_SN[1:], inside.candidates_SN[:-1]
    )
    S, L = cfg.slots, cfg.layers
    assert inside.gate_LSM.shape == (L, S, cfg.message)
    assert inside.heard_LS.shape == inside.write_LS.shape == (L, S)
    assert ((inside.gate_LSM > 0) & (inside.gate_LSM < 1)).all()
    assert (inside.write_LS > 0).all()


def test_gate_is_the_one_that_writes():
  draft = toy.dspine_model()
  inj, cfg = draft.params.injection, draft.drafter.cfg
  rng = np.random.default_rng(0)
  h, f, u = (
    jnp.asarray(rng.normal(size=(3, n)), jnp.float32)
    for n in (cfg.width, cfg.rank, cfg.rank)
  )
  passed = dspine.gate(inj, f, u) * (u @ inj.message_MR.T)
  added = passed @ inj.writes_DM[0].T * safe_norm(h) * cfg.width**-0.5
  np.testing.assert_allclose(
    dspine.write(inj, 0, h, f, u), h + added, rtol=1e-5, atol=1e-5
  )


def test_inside_of_another_drafter(rounds, refused):
  of, _, _, seen = rounds
  with refused("drafter 'dflash', expected dspine with its refinement"):
    look_inside(of.params, toy.dflash_model(), seen[0].state)
