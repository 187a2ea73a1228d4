"""One optimiser step, and what it leaves alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spinejax.drafters.backbone import BackboneConfig
from spinejax.drafters.base import TargetView
from spinejax.sharding import shard
from spinejax.train import evaluate
from spinejax.train.batch import loss_mask
from spinejax.train.objectives import OBJECTIVES, Now
from spinejax.train.objectives.dflash import DFlashLoss
from spinejax.train.objectives.domino import DominoLoss
from spinejax.train.objectives.dspine import DSpineLoss
from spinejax.train.step import (
  Task,
  TrainConfig,
  make_batch,
  train_step,
)
from tests.drafters.runs import static_jit
from tests.train import tiny

FIRST = Now(ce_share=1.0, alignment=0.0, replacement=0.5)
RATE = 1e-2


def take_step(begun, state, now=FIRST, rate=RATE, tokens=None):
  tokens = tiny.random_batch() if tokens is None else tokens
  return train_step(
    begun.task, begun.frozen, state, shard(tokens, None), now, rate
  )


def host(tree):
  """A copy that outlives donation."""
  return jax.tree.map(np.array, tree)


def largest(tree, other):
  """The largest difference of two trees."""
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), tree, other)
  return max(jax.tree.leaves(moved))


def test_the_first_step_is_that_of_a_causal_dflash():
  """Writes at zero: nothing is injected, and refinement changes nothing."""
  begun = tiny.begin()
  task, state = begun.task, begun.state
  base = jax.tree.map(jnp.copy, state.weights['backbone'])
  anchor_key, _ = jax.random.split(
    jax.random.fold_in(jax.random.key(task.seed), 0)
  )
  batch = static_jit(make_batch)(
    task, begun.frozen.target, tiny.random_batch(), anchor_key
  )
  _, scalars = take_step(begun, state)
  fields = [f.name for f in dataclasses.fields(BackboneConfig)]
  flash = BackboneConfig(**{k: getattr(task.cfg, k) for k in fields})
  assert flash.causal
  loss = DFlashLoss(task.options.gamma, task.options.cumulative)
  params = tiny.target().params
  ce, terms = static_jit(
    lambda of, *x: OBJECTIVES['dflash'].loss(*of, *x)
  )((flash, loss), base, TargetView(params.embed_VD, params.head_VD), batch,
    Now())  # fmt: skip
  np.testing.assert_allclose(scalars['ce'], ce, 1e-5)
  np.testing.assert_allclose(scalars['accuracy_S'], terms['accuracy_S'], 1e-5)
  # Here cross-entropy is all there is.
  np.testing.assert_allclose(
    scalars['loss'], scalars['ce'] + scalars['refinement'], 1e-5
  )
  assert int(scalars['supervised']) == int(batch.loss_mask_BT.sum())


def test_what_the_first_steps_move():
  begun = tiny.begin()
  before = host((begun.state, begun.frozen))
  state, _ = take_step(begun, begun.state)
  first = host(state)
  was = before[0].weights
  # Adam's first update is the learning rate, whatever the gradient's size.
  for name in ('fc_DP', 'norm_D', 'layers'):
    moved = largest(
      getattr(was['backbone'], name), getattr(first.weights['backbone'], name)
    )
    np.testing.assert_allclose(moved, RATE, 1e-3, err_msg=name)
  was, has = was['injection'], first.weights['injection']
  np.testing.assert_allclose(largest(was.writes_DM, has.writes_DM), RATE, 1e-3)
  # Behind writes of zero nothing has a gradient, and the cosine has weight 0.
  for name in ('message_MR', 'receiver_MR', 'predecessor_MR', 'readouts_RD'):
    assert largest(getattr(was, name), getattr(has, name)) == 0, name
  for _ in range(3):
    now = dataclasses.replace(FIRST, ce_share=0.9, alignment=0.1)
    state, _ = take_step(begun, state, now)
  later = host(state)
  for field in dataclasses.fields(was):
    old, new = (
      getattr(x, field.name) for x in (was, later.weights['injection'])
    )
    assert largest(old, new) > 1e-4, field.name
  assert int(later.step) == 4
  # The target and the codes are another argument, and stay what they were.
  jax.tree.map(np.testing.assert_array_equal, host(begun.frozen), before[1])
  draft = evaluate.drafter_of(begun.task, begun.frozen, state)
  np.testing.assert_array_equal(draft.params.codes_VR, before[1].codes_VR)
  np.testing.assert_allclose(
    draft.params.codes_VR, begun.codes_VR, rtol=0, atol=1e-6
  )


def test_readouts_start_at_the_axes_of_the_codes():
  begun = tiny.begin()
  assert begun.codes_VR.dtype == np.float64
  for readout_RD in begun.state.weights['injection'].readouts_RD:
    np.testing.assert_allclose(readout_RD, begun.basis.axes_DR.T, atol=1e-6)


def test_a_rate_of_zero_moves_nothing():
  begun = tiny.begin()
  before = host(begun.state.weights)
  state, _ = take_step(begun, begun.state, rate=0.0)
  jax.tree.map(np.testing.assert_array_equal, host(state.weights), before)


def test_the_state_is_donated():
  begun = tiny.begin()
  leaves = jax.tree.leaves(begun.state)
  after, _ = take_step(begun, begun.state)
  assert all(x.is_deleted() for x in leaves)
  assert not any(x.is_deleted() for x in jax.tree.leaves(after))
  kept = jax.tree.leaves((begun.frozen, tiny.target().params))
  assert not any(x.is_deleted() for x in kept)


@pytest.mark.parametrize('method', tiny.METHODS)
def test_master_weights_are_float32_whatever_the_target(method):
  params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), tiny.target().params)
  half = dataclasses.replace(tiny.target(), params=params)
  begun = tiny.begin(method, of=half)
  tokens = shard(tiny.random_batch(), None)
  after, scalars = jax.eval_shape(
    lambda state: train_step(
      begun.task, begun.frozen, state, tokens, FIRST, RATE
    ),
    begun.state,
  )
  same = jax.tree.map(lambda a, b: a.dtype == b.dtype, after, begun.state)
  assert all(jax.tree.leaves(same))
  assert {x.dtype for x in scalars.values()} == {jnp.dtype('float32')}
  weights = jax.tree.leaves(begun.state.weights)
  assert {x.dtype for x in weights} == {jnp.dtype('float32')}
  batch = jax.eval_shape(
    lambda: make_batch(begun.task, params, tokens, jax.random.key(0))
  )
  assert batch.features_BTP.dtype == batch.teacher_BTD.dtype == jnp.bfloat16


def test_the_loss_mask_is_the_answer_and_the_token_before():
  mask_BT = loss_mask(np.array([2, 1, 5, 3]), np.array([5, 6, 6, 3]), 6)
  np.testing.assert_array_equal(
    mask_BT,
    [
      [0, 1, 1, 1, 1, 0],
      [1, 1, 1, 1, 1, 1],
      [0, 0, 0, 0, 1, 1],
      [0, 0, 1, 0, 0, 0],  # no answer
    ],
  )
  assert mask_BT.dtype == np.float32


def test_padding_is_not_supervised():
  """What is behind the end of a sequence changes nothing."""
  tokens = tiny.random_batch() | {'length_B': np.arange(20, 28)}
  noise = np.arange(tiny.LENGTH) >= tokens['length_B'][:, None]
  other = tokens | {'tokens_BT': np.where(noise, 5, tokens['tokens_BT'])}
  assert (other['tokens_BT'] != tokens['tokens_BT']).any()
  told = []
  for each in (tokens, other):
    begun = tiny.begin()
    state, scalars = take_step(begun, begun.state, tokens=each)
    told.append(host((scalars, state.weights)))
  jax.tree.map(np.testing.assert_array_equal, *told)
  assert told[0][0]['supervised'] < 8 * 25


def test_the_learning_rate_is_optax_s():
  train = TrainConfig(steps=100, learning_rate=2.0, warmup=0.1)
  rates = [train.learning_rate_at(step) for step in range(100)]
  published = optax.warmup_cosine_decay_schedule(0.0, 2.0, 10, 100)
  np.testing.assert_allclose(rates, published(jnp.arange(1, 101)), 1e-5, 1e-6)
  np.testing.assert_allclose(rates[:10], np.arange(1, 11) * 0.2, 1e-5)
  assert max(rates) == pytest.approx(2.0) and (np.diff(rates[9:]) < 0).all()
  assert rates[-1] == pytest.approx(0.0, abs=1e-6)


def test_schedules_of_the_losses():
  loss = DSpineLoss(ce_start=0.8, ce_end=0.2, alignment_warmup_steps=40)
  found = [loss.at(step, 100) for step in range(100)]
  np.testing.assert_allclose(
    [x.ce_share for x in found], 0.8 - 0.6 * np.arange(100) / 100, 1e-6
  )
  np.testing.assert_allclose(
    [found[i].alignment for i in (0, 20, 40, 99)], [0, 0.25, 0.5, 0.5], 1e-6
  )
  np.testing.assert_allclose(
    [found[i].replacement for i in (0, 16, 25, 34)], [0.5, 0.5, 0.25, 0], 1e-5
  )
  loss = DFlashLoss(ce_start=1.0, ce_end=0.5)
  assert [loss.at(step, 4).ce_share for step in (0, 2)] == [1.0, 0.75]
  assert loss.at(3, 4) == Now(ce_share=0.625)
  loss = DominoLoss(base_start=0.8, base_end=0.5)
  shares = [loss.at(step, 8).base_share for step in (0, 1, 3, 4, 7)]
  np.testing.assert_allclose(shares, [0.8, 0.6, 0.2, 0, 0], atol=1e-9)


def test_a_task_is_known_by_its_values():
  """Otherwise each run would compile its step anew."""
  one, other = tiny.begin().task, tiny.begin().task
  assert one == other and hash(one) == hash(other)
  assert one != dataclasses.replace(one, seed=1)
  assert isinstance(one, Task)


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(steps=0), 'steps = 0, expected an integer >= 1'),
    (dict(anchors=0), 'anchors = 0, expected an integer >= 1'),
    (dict(accumulate=0), 'accumulate = 0, expected an integer >= 1'),
    (
      dict(learning_rate=0.0),
      'learning_rate = 0.0, expected a positive number',
    ),
    (
      dict(learning_rate=float('nan')),
      'learning_rate = nan, expected a finite number >= 0',
    ),
    (dict(clip=-1.0), 'clip = -1.0, expected a finite number >= 0'),
    (dict(warmup=1.5), 'warmup = 1.5, expected 0..1'),
  ),
)
def test_refused_in_one_line(change, message, refused):
  with refused(message):
    TrainConfig(**(dict(steps=10) | change))
