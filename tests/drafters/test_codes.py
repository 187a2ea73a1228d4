"""Token codes against those of the published implementation."""

import ml_dtypes
import numpy as np
import pytest

from spinejax.drafters.codes import codes_hash, fit_basis, token_codes
from spinejax.errors import InputError
from tests.drafters.runs import load_run

RNG = np.random.default_rng(0)
HEAD_VD = RNG.normal(size=(300, 24))


@pytest.mark.parametrize('name', ['dspine-b6', 'dspine-separate-codes'])
def test_codes_and_axes_are_the_published_ones_up_to_signs(name):
  run = load_run(name)
  expected = run.recorded('transfer_init')
  basis = fit_basis(run.target.head_VD, run.cfg.rank)
  codes_VR = token_codes(run.target.head_VD, basis)
  assert codes_VR.dtype == np.float64
  np.testing.assert_allclose(
    codes_VR @ codes_VR.T, expected['codes'] @ expected['codes'].T, atol=1e-5
  )
  sign_R = np.sign(np.sum(codes_VR * expected['codes'], axis=0))
  np.testing.assert_allclose(codes_VR * sign_R, expected['codes'], atol=5e-5)
  np.testing.assert_allclose(
    basis.axes_DR * sign_R, expected['readout_init'].T, atol=5e-5
  )
  # The checkpoint's own codes are these.
  np.testing.assert_allclose(run.params.codes_VR, expected['codes'], atol=1e-7)


def test_codes_are_unit_and_white_before_they_are_normalised():
  basis = fit_basis(HEAD_VD, 8)
  codes_VR = token_codes(HEAD_VD, basis)
  np.testing.assert_allclose(np.linalg.norm(codes_VR, axis=1), 1, rtol=1e-12)
  unit = HEAD_VD / np.linalg.norm(HEAD_VD, axis=1, keepdims=True)
  white = (unit - basis.mean_D) @ basis.axes_DR / np.sqrt(basis.eigenvalues_R)
  np.testing.assert_allclose(white.T @ white, np.eye(8), atol=1e-12)
  assert np.all(np.diff(basis.eigenvalues_R) > 0)


def test_codes_of_a_stored_head_are_those_of_its_exact_values():
  head = HEAD_VD.astype(ml_dtypes.bfloat16)
  basis = fit_basis(head, 8)
  np.testing.assert_array_equal(
    token_codes(head, basis), token_codes(head.astype(np.float64), basis)
  )


def test_rank_beyond_that_of_the_head_is_refused():
  with pytest.raises(InputError, match='rank = 25 exceeds the rank of the hea'):
    fit_basis(HEAD_VD, 25)
  flat = HEAD_VD.copy()
  flat[:, 10:] = 0
  with pytest.raises(InputError, match='rank = 12 exceeds'):
    fit_basis(flat, 12)


def test_hash_survives_rounding_and_tells_bases_apart():
  basis = fit_basis(HEAD_VD, 8)
  codes_VR = token_codes(HEAD_VD, basis)
  noise = RNG.choice([-1e-12, 1e-12], codes_VR.shape)
  same = codes_hash(codes_VR)
  assert codes_hash(codes_VR + noise) == same
  assert codes_hash(codes_VR.astype(np.float32)) == same
  flipped = codes_VR * np.where(np.arange(8) == 3, -1, 1)
  assert codes_hash(flipped) != same
  other = HEAD_VD + 1e-2 * RNG.normal(size=HEAD_VD.shape)
  assert codes_hash(token_codes(other, basis)) != same
  assert codes_hash(token_codes(HEAD_VD, fit_basis(HEAD_VD, 7))) != same
