"""The compiled loop: nothing compiles after warm-up, nothing crosses to the
host, and the state is donated."""

import warnings

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode.generate import start
from spinejax.decode.loop import prefill_chunk, run_rounds
from spinejax.decode.round import Params
from spinejax.drafters.loading import ngram_model
from spinejax.verify.sampling import Sampling
from tests.compilations import COMPILATIONS
from tests.decode import toy

WARM_UP = dict(prompts=toy.prompts(1, 40, 130, 7), stop_ids=(60, 60))
# Same shapes, everything else another.
SECOND = dict(
  prompts=toy.prompts(150, 2, 1, 90, seed=1),
  stop_ids=(5, 9),
  max_new_tokens=9,
  seed=77,
)


def fresh(slots=6):
  """A drafter that no other test file has compiled: its slots are its own."""
  return ngram_model(slots)


@pytest.mark.parametrize('temperature', (0.0, 0.7))
def test_a_second_batch_compiles_nothing(temperature):
  slots = 7  # no other test's
  before = len(COMPILATIONS)
  toy.decode(toy.target(), fresh(slots), temperature=temperature, **WARM_UP)
  assert len(COMPILATIONS) > before, 'the counter does not count'
  again = {} if temperature == 0 else dict(temperature=1.3, top_k=5, top_p=0.8)
  before = len(COMPILATIONS)
  done = toy.decode(toy.target(), fresh(slots), **SECOND, **again)
  assert len(COMPILATIONS) == before
  assert all(1 <= len(c.tokens) <= 9 for c in done.completions)


def test_a_rebuilt_drafter_and_target_config_compile_nothing():
  toy.decode(toy.target(), fresh(), **WARM_UP)
  toy.target.cache_clear()
  rebuilt = toy.target()
  before = len(COMPILATIONS)
  toy.decode(rebuilt, fresh(), **WARM_UP)
  assert len(COMPILATIONS) == before


def test_streaming_compiles_nothing_more():
  toy.decode(toy.target(), fresh(), **WARM_UP)
  before = len(COMPILATIONS)
  parts = []
  toy.decode(toy.target(), fresh(), stream=parts.append, **WARM_UP)
  assert parts
  assert len(COMPILATIONS) == before


def placed(draft):
  """Everything that the loop takes, on the device."""
  target, prompts = toy.target(), WARM_UP['prompts']
  state = start(target, draft, prompts, 24, stop_ids=(60, 60), capacity=256)
  params = Params(target.params, draft.params)
  sampling = Sampling.make(len(prompts), temperature=0.7)
  return jax.block_until_ready((params, state, sampling, jnp.int32(99)))


@pytest.mark.parametrize(
  'draft', (fresh(), toy.dflash_model()), ids=('ngram', 'dflash')
)
def test_the_loop_touches_the_host_never_and_donates_its_state(draft):
  cfg, drafter = toy.target().cfg, draft.drafter
  with warnings.catch_warnings():
    # "Some donated buffers were not usable" is a warning.
    warnings.simplefilter('error')
    params, state, sampling, most = placed(draft)
    prefill_chunk(cfg, drafter, params, state)
    params, state, sampling, most = placed(draft)
    with jax.transfer_guard('disallow'):
      for _ in range(2):
        given = jax.tree.leaves(state)
        state = prefill_chunk(cfg, drafter, params, state)
        assert all(x.is_deleted() for x in given)
      given = jax.tree.leaves(state)
      state = run_rounds(cfg, drafter, params, state, sampling, most)
      state = jax.block_until_ready(state)
  assert all(x.is_deleted() for x in given)
  assert state.done_B.all()
  kept = jax.tree.leaves((params, sampling, most))
  assert not any(x.is_deleted() for x in kept)


def test_the_guard_guards():
  with (
    jax.transfer_guard('disallow'),
    pytest.raises(Exception, match='ransfer'),
  ):
    jnp.sin(np.ones(3))


def test_the_loop_stops_after_the_rounds_asked_for():
  draft = fresh()
  params, state, sampling, _ = placed(draft)
  for _ in range(2):
    state = prefill_chunk(toy.target().cfg, draft.drafter, params, state)
  for ran in (3, 5):
    state = run_rounds(
      toy.target().cfg, draft.drafter, params, state, sampling, jnp.int32(ran)
    )
  np.testing.assert_array_equal(state.rounds_B.max(), 8)
