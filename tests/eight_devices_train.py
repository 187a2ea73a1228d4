"""Training in a process with eight host devices; see `test_sharding.py`."""

import dataclasses
import functools
import itertools
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.compat.checkpointing import Checkpoints
from spinejax.train import evaluate, loop, setup
from spinejax.train.step import TrainConfig
from tests.compilations import COMPILATIONS
from tests.train import tiny

STEPS = (
  ('dspine', 'data=8'),
  ('dspine', 'data=4,model=2'),
  ('domino', 'data=4,model=2'),
)
TRAIN = TrainConfig(steps=3, anchors=6, learning_rate=1e-3, warmup=0.5)


@pytest.fixture(autouse=True)
def donation_fails_aloud():
  """JAX warns where donated buffers were not usable."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    yield


def run(method: str, mesh: str, train: TrainConfig = TRAIN):
  """What was logged, the state, and compilations after each step."""
  begun, log, compiled = tiny.begin(method, train, tiny.target(mesh)), [], []

  def keep(step, told):
    log.append(told)
    compiled.append(len(COMPILATIONS))

  state = loop.run(
    begun.task, train, begun.frozen, begun.state,
    itertools.repeat(tiny.random_batch()), every=loop.Every(log=1), log=keep,
  )  # fmt: skip
  return begun, log, state, compiled


@functools.cache
def one_device(method: str):
  _, log, state, _ = run(method, '')
  return log, jax.device_get(state.weights)


@pytest.mark.parametrize('method, mesh', STEPS)
def test_steps_are_those_of_one_device(method, mesh):
  log, weights = one_device(method)
  begun, found, state, compiled = run(method, mesh)
  for a, b in zip(log, found, strict=True):
    for name in ('loss', 'ce', 'grad_norm', 'accuracy_S'):
      np.testing.assert_allclose(a[name], b[name], 1e-4, err_msg=name)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5),
    weights,
    jax.device_get(state.weights),
  )
  assert compiled[0] == compiled[-1], 'a later step compiled'
  # Each array is where it was.
  fresh = tiny.begin(method, TRAIN, tiny.target(mesh)).state
  jax.tree.map(same_place, state, fresh)
  # And decodes there.
  draft = evaluate.drafter_of(begun.task, begun.frozen, state)
  answers = tiny.decode(draft, tiny.target(mesh))
  for a, b in zip(answers, tiny.plain(), strict=True):
    np.testing.assert_array_equal(a.tokens, b.tokens)


def same_place(a, b):
  assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_a_batch_taken_in_parts():
  train = dataclasses.replace(TRAIN, accumulate=2)
  _, log, _, _ = run('domino', 'data=4,model=2', train)
  for a, b in zip(log, one_device('domino')[0], strict=True):
    np.testing.assert_allclose(a['loss'], b['loss'], 1e-4)


def test_a_run_goes_on_on_another_mesh(tmp_path):
  """From what was saved on eight devices."""
  state = tiny.begin('dspine', TRAIN, tiny.target('data=4,model=2')).state
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, state, {}, None)
  for mesh in ('', 'data=8', 'data=4,model=2'):
    like = tiny.begin('dspine', TRAIN, tiny.target(mesh)).state
    found = checkpoints.load(1, jax.tree.map(jnp.zeros_like, like))
    jax.tree.map(np.testing.assert_array_equal, found, state)
    jax.tree.map(same_place, found, like)
  checkpoints.close()


def test_what_does_not_divide_is_refused(refused):
  target = tiny.target('data=4,model=2')

  def check(accumulate, batch):
    setup.check_batch(
      target, dataclasses.replace(TRAIN, accumulate=accumulate),
      types.SimpleNamespace(manifest={'answer_tokens': 9}), batch=batch,
      lengths=(tiny.LENGTH,),
    )  # fmt: skip

  for accumulate, batch in ((1, 6), (2, 12)):
    with refused(
      f'batch = {batch} in {accumulate} parts does not split over data = 4'
    ):
      check(accumulate, batch)
    check(accumulate, 8)
  with refused('a batch of 3 cannot be split evenly over the mesh axis data=4'):
    begun = tiny.begin('dspine', TRAIN, target)
    draft = evaluate.drafter_of(begun.task, begun.frozen, begun.state)
    evaluate.check_answers(target, draft, tiny.PROMPTS[:3], max_new_tokens=4)
