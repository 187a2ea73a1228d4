"""One optimiser step, and what it leaves alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spinejax.drafters.backbone import BackboneConfig
from spinejax.drafters.base import TargetView
from spinejax.train.batch import Batch, sample_anchors
from spinejax.train.features import compute_corpus
from spinejax.train.losses import DFlashLoss, DSpineLoss, dflash_loss
from spinejax.train.step import Schedule, TrainConfig, schedule, train_step
from tests.drafters.runs import quick_jit
from tests.train import tiny

pytestmark = pytest.mark.usefixtures('quick_compilation')
STILL = TrainConfig(steps=1, anchors=tiny.TRAIN.anchors)
ROWS_B = np.arange(tiny.COUNT)


@pytest.fixture(scope='module')
def corpus(quick_compilation):
  del quick_compilation
  return compute_corpus(tiny.target(), tiny.random_data(), tiny.DRAFT.taps)


def view() -> TargetView:
  params = tiny.target().params
  return TargetView(params.embed_VD, params.head_VD)


def take_step(state, corpus, now: Schedule):
  return train_step(
    STILL, tiny.DRAFT, DSpineLoss(), view(), state, corpus,
    jnp.asarray(ROWS_B), now,
  )  # fmt: skip


def now(step: int) -> Schedule:
  return schedule(tiny.TRAIN, DSpineLoss(), step)


def host(tree):
  """A copy that outlives donation."""
  return jax.tree.map(np.array, tree)


def test_the_first_step_is_that_of_a_causal_dflash(corpus):
  """Writes at zero: nothing is injected, and refinement changes nothing."""
  state = tiny.fresh_state()
  base = jax.tree.map(jnp.copy, state.weights['backbone'])
  _, scalars = take_step(state, corpus, now(0))
  key = jax.random.fold_in(jax.random.key(STILL.seed), 0)
  mask_BT = corpus.loss_mask_NT[ROWS_B]
  batch = Batch(
    corpus.tokens_NT[ROWS_B],
    mask_BT,
    corpus.features_NTP[ROWS_B],
    corpus.teacher_NTD[ROWS_B],
    *sample_anchors(jax.random.split(key)[0], mask_BT, STILL.anchors),
  )
  fields = [f.name for f in dataclasses.fields(BackboneConfig)]
  flash = BackboneConfig(**{k: getattr(tiny.DRAFT, k) for k in fields})
  assert flash.causal
  loss = DFlashLoss(DSpineLoss().gamma)
  ce, terms = quick_jit(
    lambda of, *x: dflash_loss(*of, *x)
  )((flash, loss), base, view(), batch)  # fmt: skip
  np.testing.assert_allclose(scalars['ce'], ce, 1e-5)
  np.testing.assert_allclose(scalars['accuracy_S'], terms['accuracy_S'], 1e-5)
  # At the first step cross-entropy is all there is.
  np.testing.assert_allclose(
    scalars['loss'], scalars['ce'] + scalars['refinement'], 1e-5
  )


def test_what_the_first_steps_move(corpus):
  state = tiny.fresh_state()
  before = host(state)
  state, _ = take_step(state, corpus, now(0))
  first = host(state)

  def largest(tree, other):
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), tree, other)
    return max(jax.tree.leaves(moved))

  was, has = before.weights['injection'], first.weights['injection']
  # Adam's first update is the learning rate, whatever the gradient's size.
  rate = now(0).learning_rate
  for name in ('fc_DP', 'norm_D', 'layers'):
    moved = largest(
      getattr(before.weights['backbone'], name),
      getattr(first.weights['backbone'], name),
    )
    np.testing.assert_allclose(moved, rate, 1e-3, err_msg=name)
  np.testing.assert_allclose(largest(was.writes_DM, has.writes_DM), rate, 1e-3)
  # Behind writes of zero nothing has a gradient, and the cosine has weight 0.
  for name in ('message_MR', 'receiver_MR', 'predecessor_MR', 'readouts_RD'):
    assert largest(getattr(was, name), getattr(has, name)) == 0, name
  for step in range(1, 4):
    state, _ = take_step(state, corpus, now(step))
  later = host(state)
  for field in dataclasses.fields(was):
    old, new = (
      getattr(x, field.name) for x in (was, later.weights['injection'])
    )
    assert largest(old, new) > 1e-4, field.name
  np.testing.assert_array_equal(later.codes_VR, before.codes_VR)
  assert int(later.step) == 4


def test_a_rate_of_zero_moves_nothing(corpus):
  state = tiny.fresh_state()
  before = host(state.weights)
  still = dataclasses.replace(now(10), learning_rate=0.0)
  state, _ = take_step(state, corpus, still)
  jax.tree.map(np.testing.assert_array_equal, host(state.weights), before)


def test_the_state_is_donated(corpus):
  state = tiny.fresh_state()
  leaves = jax.tree.leaves(state)
  after, _ = take_step(state, corpus, now(0))
  # The key is drawn from the step, and codes pass through: all is reused.
  assert all(x.is_deleted() for x in leaves)
  assert not any(x.is_deleted() for x in jax.tree.leaves(after))


def test_master_weights_are_float32_whatever_the_target(corpus):
  half = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x,
    (view(), corpus),
  )
  state, first = tiny.fresh_state(), now(0)
  after, scalars = jax.eval_shape(
    lambda state: train_step(
      STILL, tiny.DRAFT, DSpineLoss(), half[0], state, half[1],
      jnp.asarray(ROWS_B), first,
    ),
    state,
  )  # fmt: skip
  same = jax.tree.map(lambda a, b: a.dtype == b.dtype, after, state)
  assert all(jax.tree.leaves(same))
  assert {x.dtype for x in scalars.values()} == {jnp.dtype('float32')}


def test_schedules():
  train = TrainConfig(
    steps=100, learning_rate=2.0, warmup=0.1, ce_start=0.8, ce_end=0.2
  )
  loss = DSpineLoss(alignment_warmup_steps=40)
  found = [schedule(train, loss, step) for step in range(100)]
  rates = [x.learning_rate for x in found]
  published = optax.warmup_cosine_decay_schedule(0.0, 2.0, 10, 100)
  np.testing.assert_allclose(rates, published(jnp.arange(1, 101)), 1e-5, 1e-6)
  np.testing.assert_allclose(rates[:10], np.arange(1, 11) * 0.2, 1e-5)
  assert max(rates) == pytest.approx(2.0) and (np.diff(rates[9:]) < 0).all()
  assert rates[-1] == pytest.approx(0.0, abs=1e-6)
  np.testing.assert_allclose(
    [x.ce_weight for x in found], 0.8 - 0.6 * np.arange(100) / 100, 1e-6
  )
  np.testing.assert_allclose(
    [found[i].alignment for i in (0, 20, 40, 99)], [0, 0.25, 0.5, 0.5], 1e-6
  )
  np.testing.assert_allclose(
    [found[i].replacement for i in (0, 16, 25, 34)], [0.5, 0.5, 0.25, 0], 1e-5
  )


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(steps=0), 'steps = 0, expected at least 1'),
    (dict(anchors=0), 'anchors = 0, expected at least 1'),
    (
      dict(learning_rate=0.0),
      'learning_rate = 0.0, expected a positive number',
    ),
    (
      dict(learning_rate=float('nan')),
      'learning_rate = nan, expected a positive number',
    ),
    (dict(ce_end=1.5), 'ce_end = 1.5, expected 0..1'),
    (dict(warmup=-0.1), 'warmup = -0.1, expected 0..1'),
  ),
)
def test_refused_in_one_line(change, message, refused):
  with refused(message):
    TrainConfig(**(dict(steps=10) | change))
