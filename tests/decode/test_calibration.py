"""Sequential temperature scaling on confidences that are known to be wrong."""

import jax
import numpy as np
import pytest

from spinejax.decode import calibration
from tests.decode import toy


def rounds(count, wrong_by, seed=0):
  """Confidences whose logits are `wrong_by` times what they should be, and
  proposals accepted."""
  rng = np.random.default_rng(seed)
  logits = rng.normal(0.8, 1.2, (count, len(wrong_by)))
  passed = rng.random(logits.shape) < jax.nn.sigmoid(logits)
  accepted = np.cumprod(passed, axis=1).sum(1)
  return np.asarray(jax.nn.sigmoid(logits * wrong_by)), accepted


def test_expected_error():
  predicted = np.array([0.05, 0.05, 0.95, 1.0])
  happened = np.array([0, 1, 1, 1])
  # Two bins, of which one is 0.45 off and the other 0.025.
  assert calibration.expected_error(predicted, happened) == pytest.approx(
    (0.45 + 0.025) / 2
  )


def test_temperatures_are_found_and_hold_on_other_rounds():
  wrong_by = np.array([3.0, 0.5, 2.0, 4.0])
  temperature_S = calibration.fit(*rounds(20_000, wrong_by))
  np.testing.assert_allclose(temperature_S, wrong_by, rtol=0.25)
  held_out = rounds(20_000, wrong_by, seed=1)
  before = calibration.error(*held_out)
  after = calibration.error(*held_out, temperature_S)
  assert min(before) > 0.025
  assert max(after) < 0.015


def test_what_is_right_is_left_as_it_is():
  temperature_S = calibration.fit(*rounds(20_000, np.ones(3)))
  np.testing.assert_allclose(temperature_S, 1, rtol=0.15)


def test_errors_are_of_survival_not_of_single_slots():
  """Slots that fail together: each is calibrated, the first two are not."""
  rng = np.random.default_rng(0)
  accepted = np.where(rng.random(4000) < 0.5, 2, 0)
  confidence = np.full((4000, 2), 0.5)
  found = calibration.error(confidence, accepted)
  np.testing.assert_allclose(found, [0, 0.25], atol=0.02)
  # The second slot makes up for it as far as a temperature can: 0.5 stays.
  assert calibration.fit(confidence, accepted) == [1.0, 1.0]


def test_observe():
  of, prompts = toy.target(), toy.prompts(9, 4, 6)
  known = toy.answers(of, toy.oracle_model(prompts, [[]] * 3), prompts)
  wise = toy.oracle_model(prompts, known, wrong_every=1000, gap_every=1000)
  confidence, accepted = calibration.observe(
    of, wise, prompts, 3, capacity=256, max_new_tokens=toy.NEW
  )
  assert confidence.shape == (len(accepted), toy.SLOTS)
  assert (confidence == 1).all() and (accepted == toy.SLOTS).all()
  assert len(accepted) == 3 * -(-toy.NEW // (toy.SLOTS + 1))


def test_bad_input(refused):
  with refused('confidence_BS has shape (3,), expected rounds by slots'):
    calibration.fit(np.ones(3), np.ones(3))
  with refused('accepted_B has shape (2,), expected (3,) as there are rounds'):
    calibration.error(np.ones((3, 1)), np.ones(2))
  with refused('batch = 0, expected 1..2147483647'):
    calibration.observe(toy.target(), toy.dspine_model(), toy.prompts(3), 0)
