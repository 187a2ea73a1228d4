"""Objectives of Domino and DSpark against the published reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters.base import DraftModel
from spinejax.drafters.checkpoint import model_tensors
from spinejax.train.objectives import OBJECTIVES, Now
from spinejax.train.objectives.domino import DominoLoss
from spinejax.train.objectives.dspark import DSparkLoss
from tests.drafters.runs import load_run, static_jit
from tests.train.test_losses import RTOL, assert_close, assert_gradients, inputs


@static_jit
def _computed(of, params, view, batch, now):
  name, cfg, options = of
  return jax.value_and_grad(
    lambda params: OBJECTIVES[name].loss(
      cfg, options, params, view, batch, now
    ),
    has_aux=True,
  )(params)


def computed(run, options, now: Now):
  """((value, terms), gradients) of the recorded batch."""
  of = (run.model.drafter.name, run.cfg, options)
  params = jax.tree.map(jnp.asarray, run.params)
  return jax.device_get(_computed(of, params, *inputs(run), now))


def gradients(run, grads) -> dict:
  """By their published names, without the target's tables."""
  found = model_tensors(DraftModel(run.model.drafter, grads))
  return {name.removeprefix('logit_head.'): x for name, x in found.items()}


@pytest.mark.parametrize('kind', ('vanilla', 'gated', 'rnn'))
def test_dspark(kind):
  run = load_run(f'dspark-{kind}')
  want = run.recorded('train')
  ce, l1, confidence = want['alphas']
  options = DSparkLoss(ce_start=float(ce), ce_end=float(ce))
  assert ce + l1 == pytest.approx(1) and confidence == options.confidence
  assert options.gamma == want['decay_gamma']
  (value, terms), grads = computed(run, options, options.at(0, 10))
  np.testing.assert_allclose(value, want['loss_specforge'], RTOL)
  np.testing.assert_allclose(value, want['loss'], 1e-5)
  kept = want['block_keep'] > 0
  assert_close(terms['ce'][kept], want['token_ce'][kept])
  assert_close(1 - terms['l1'][kept] / 2, want['accept_rate'][kept])
  assert_close(np.sum(terms['weights']), want['weight_sum'])
  for key in ('ce', 'l1', 'confidence'):
    total = np.sum(terms[key] * terms['weights'])
    np.testing.assert_allclose(total, want[f'{key}_sum'], RTOL, err_msg=key)
  assert_gradients(gradients(run, grads), want, 'grad_norm.')


def test_domino():
  run = load_run('domino-b6')
  want = run.recorded('train')
  options = DominoLoss(float(want['decay_gamma']))
  kept = want['block_keep'] > 0
  for share, loss in zip(want['lambda_base'], want['loss'], strict=True):
    (value, terms), grads = computed(run, options, Now(base_share=float(share)))
    np.testing.assert_allclose(value, loss, RTOL)
    assert_close(terms['ce'][kept], want['token_final_ce'][kept])
    assert_close(terms['base_ce'][kept], want['token_base_ce'][kept])
    assert_close(terms['weights'], want['weights'])
    if share == pytest.approx(0.3):
      assert_gradients(gradients(run, grads), want, 'grad_norm.')
  seen_S = want['supervised_weight'].sum((0, 1))
  pooled = np.sum(terms['accuracy_S'] * seen_S) / seen_S.sum()
  assert_close(pooled, want['accuracy'])


def test_domino_schedule():
  options = DominoLoss()
  found = [options.at(step, 100).base_share for step in (0, 25, 50, 99)]
  assert found == [1.0, 0.5, 0.0, 0.0]
