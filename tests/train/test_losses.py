"""The training objectives against the published reference, term by term."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters.base import DraftModel, TargetView
from spinejax.drafters.checkpoint import model_tensors
from spinejax.drafters.dflash import dflash
from spinejax.drafters.dspine import dspine
from spinejax.train.batch import Batch
from spinejax.train.objectives import OBJECTIVES, Now
from spinejax.train.objectives.dflash import DFlashLoss
from spinejax.train.objectives.dspine import DSpineLoss, loss_of
from tests.drafters.runs import Run, load_run, static_jit

SPINES = ('dspine-b6', 'dspine-separate-codes')
RTOL = 1e-5


@pytest.fixture(scope='module', params=SPINES)
def run(request) -> Run:
  """Each DSpine in turn, all tests of one together: they share a program."""
  return load_run(request.param)


def inputs(run: Run) -> tuple[TargetView, Batch]:
  """The target's tables and the recorded batch; DFlash has no teacher."""
  want = run.recorded('train')
  no_teacher = np.zeros((*want['input_ids'].shape, run.cfg.width), np.float32)
  batch = Batch(
    tokens_BT=want['input_ids'],
    loss_mask_BT=want['loss_mask'],
    features_BTP=want['context_features'],
    teacher_BTD=want.get('teacher_hidden', no_teacher),
    anchors_BA=want['anchors'],
    keep_BA=want['block_keep'] > 0,
  )
  return TargetView(run.embed_VD, run.head_VD), jax.tree.map(jnp.asarray, batch)


@static_jit
def flash_loss(of, params, view, batch):
  """((value, terms), gradients) of a static (config, loss)."""
  return jax.value_and_grad(
    lambda params: OBJECTIVES['dflash'].loss(*of, params, view, batch, Now()),
    has_aux=True,
  )(params)


@static_jit
def flash_value(of, params, view, batch):
  return OBJECTIVES['dflash'].loss(*of, params, view, batch, Now())[0]


def spine_loss(run, beta, batch=None, replace_BA=None):
  """Value, terms and, where they are recorded too, gradients."""
  view, recorded = inputs(run)
  batch = recorded if batch is None else batch
  if replace_BA is None:
    replace_BA = np.zeros(batch.keep_BA.shape, bool)
  (value, terms), grads = _spine_loss(
    (run.cfg, DSpineLoss(), (run.path / 'grads.safetensors').exists()),
    jax.tree.map(jnp.asarray, run.params),
    view,
    batch,
    jnp.float32(beta),
    jnp.asarray(replace_BA),
  )
  return value, terms, grads


@static_jit
def _spine_loss(of, params, view, batch, beta, replace_BA):
  cfg, loss, with_gradients = of

  def compute(params):
    now = Now(ce_share=loss.ce_start, alignment=beta)
    return loss_of(cfg, loss, params, view, batch, now, None, replace_BA)

  if with_gradients:
    return jax.value_and_grad(compute, has_aux=True)(params)
  return compute(params), None


def assert_close(found, want, name=''):
  np.testing.assert_allclose(found, want, RTOL, 1e-5, err_msg=name)


def assert_gradients(found: dict, want: dict, prefix: str):
  """All gradients by their norms, and as a whole where recorded."""
  norms = {k.removeprefix(prefix): v for k, v in want.items() if prefix in k}
  assert set(norms) == set(found)
  for name, x in found.items():
    np.testing.assert_allclose(
      np.linalg.norm(x), norms[name], 1e-4, 1e-6, err_msg=name
    )
  for name in set(found) & set(want):
    np.testing.assert_allclose(
      found[name], want[name], 1e-4, 1e-6, err_msg=name
    )


def test_dflash():
  run = load_run('dflash-b6')
  want, given = run.recorded('train'), inputs(run)
  gamma = float(want['decay_gamma'])
  of = (run.cfg, DFlashLoss(gamma))
  (value, terms), grads = flash_loss(of, run.params, *given)
  np.testing.assert_allclose(value, want['loss'], RTOL)
  kept = want['block_keep'] > 0
  assert_close(terms['ce'][kept], want['token_ce'][kept][:, 1:])
  mask_BAS = want['supervised_weight'][..., 1:]
  # Each slot stands for itself: after an unsupervised one others follow.
  assert (np.diff(mask_BAS, axis=-1) > 0).any()
  decay_S = np.exp(-np.arange(run.cfg.slots) / gamma)
  assert_close(terms['weights'], mask_BAS * decay_S)
  assert_close(np.sum(terms['weights']), want['loss_denominator'])
  # The reference pools the slots.
  seen_S = mask_BAS.sum((0, 1))
  pooled = np.sum(terms['accuracy_S'] * seen_S) / seen_S.sum()
  assert_close(pooled, want['accuracy'])
  flat = (run.cfg, DFlashLoss(gamma=None))
  value = flash_value(flat, run.params, *given)
  np.testing.assert_allclose(value, want['loss_without_decay'], RTOL)
  found = model_tensors(DraftModel(dflash(run.cfg), grads))
  assert_gradients(found, want, 'grad_norm.')


def test_dspine_terms(run):
  want, loss = run.recorded('train'), DSpineLoss()
  for i, step in enumerate(want['steps']):
    beta = loss.at(step, 1000).alignment
    np.testing.assert_allclose(beta, want['beta'][i], RTOL)
    value, terms, _ = spine_loss(run, beta)
    np.testing.assert_allclose(value, want['loss'][i], RTOL)
  assert_close(terms['weights'], want['weights'])
  assert_close(np.sum(terms['weights']), want['weight_sum'])
  kept = want['block_keep'] > 0
  for key in ('ce', 'l1', 'refinement', 'alignment'):
    assert_close(terms[key][kept], want[f'token_{key}'][kept], key)
    total = np.sum(terms[key] * terms['weights'])
    np.testing.assert_allclose(total, want[f'{key}_sum'], RTOL, err_msg=key)


def test_dspine_accuracies(run):
  want = run.recorded('train')
  _, terms, _ = spine_loss(run, 0.5)
  refined = want['refined_scores_gold'].argmax(-1)[..., None]
  best = {
    'accuracy_S': want['base_logits'][:, :, 1:].argmax(-1),
    'refined_accuracy_S': np.take_along_axis(want['candidates'], refined, -1)[
      ..., 0
    ],
  }
  seen = want['supervised'] > 0
  for key, tokens_BAS in best.items():
    right = (tokens_BAS == want['labels'][..., 1:]) & seen
    seen_S = np.maximum(seen.sum((0, 1)), 1)
    assert_close(terms[key], right.sum((0, 1)) / seen_S, key)


@pytest.mark.parametrize('run', SPINES[:1], indirect=True)
def test_dspine_gradients(run):
  want = run.recorded('grads')
  _, _, grads = spine_loss(run, DSpineLoss().at(want['step'], 1000).alignment)
  found = model_tensors(DraftModel(dspine(run.cfg), grads))
  del found['transfer_codes']  # fixed, whatever their gradient
  assert_gradients(found, want, 'norm_of.')


def test_replaced_blocks(run):
  want = run.recorded('train')
  kept = want['block_keep'] > 0
  replaced = want['replace_mask'][kept] > 0
  assert replaced.any() and not replaced.all()
  label_BAS = want['labels'][..., 1:]
  _, plain, _ = spine_loss(run, 0.5)
  _, terms, _ = spine_loss(run, 0.5, replace_BA=want['replace_mask'] > 0)
  # What is recorded are states; from them the terms that depend on them.
  logits = want['replaced_hidden_states'][:, :, 1:] @ np.asarray(run.head_VD).T
  log_q = np.asarray(jax.nn.log_softmax(logits))
  ce = -np.take_along_axis(log_q, label_BAS[..., None], -1)[..., 0]
  np.testing.assert_allclose(terms['ce'][kept], ce[kept], RTOL, 1e-4)
  feature = want['replaced_layer_features'][..., 1:, :]
  feature = feature / np.linalg.norm(feature, axis=-1, keepdims=True)
  cosine = (feature * np.asarray(run.params.codes_VR)[label_BAS]).sum(-1)
  align = (1 - cosine).sum(0)
  np.testing.assert_allclose(terms['alignment'][kept], align[kept], RTOL, 1e-4)
  moved = np.abs(terms['ce'] - plain['ce'])[kept].max(-1)
  np.testing.assert_array_equal(moved > 1e-3, replaced)


def test_replacement_schedule(run):
  want, loss = run.recorded('train'), DSpineLoss()
  total = int(want['schedule_total'])
  steps = want['schedule_steps']
  found = [loss.at(step, total).replacement for step in steps]
  assert_close(found, want['schedule_replacement_probability'])


@pytest.mark.parametrize('run', SPINES[:1], indirect=True)
def test_padding_anchors_give_neither_loss_nor_gradient(run):
  _, batch = inputs(run)

  def of_anchors(anchors_BA, keep_BA=batch.keep_BA):
    moved = dataclasses.replace(
      batch, anchors_BA=jnp.asarray(anchors_BA), keep_BA=jnp.asarray(keep_BA)
    )
    value, _, grads = spine_loss(run, 0.5, moved)
    return value, grads

  assert not batch.keep_BA.all()
  value, grads = of_anchors(batch.anchors_BA)
  moved_BA = np.where(batch.keep_BA, batch.anchors_BA, 7)
  assert (moved_BA != batch.anchors_BA).any()
  value_moved, grads_moved = of_anchors(moved_BA)
  assert value == value_moved
  jax.tree.map(np.testing.assert_array_equal, grads, grads_moved)
  # Nothing but padding: no division by zero.
  value, grads = of_anchors(moved_BA, np.zeros_like(batch.keep_BA))
  assert value == 0
  assert not any(np.any(x) for x in jax.tree.leaves(grads))
