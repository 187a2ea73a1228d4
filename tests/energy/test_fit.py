"""Fits recover what made the data at any units, or refuse it."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from spinejax.energy import fit
from spinejax.energy.simple import VARIANTS, Simple
from spinejax.energy.sweetspot import NAMES, SweetSpot
from tests.energy.cells import grid, noisy

SIX = ('smollm2-135m', 'smollm2-1.7b', 'qwen3-0.6b', 'qwen3-8b',
       'llama-3.2-1b', 'llama-3.1-8b')  # fmt: skip
TABLE = grid(SIX)
# Joules per unit: each term gets about as much as the others over the grid.
EVEN = {name: 1 / np.median(Simple(name).columns(TABLE), axis=0)
        for name in VARIANTS}  # fmt: skip


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  variant=st.sampled_from(list(VARIANTS)),
  weights=st.sampled_from(fit.WEIGHTS),
  shares=st.lists(st.floats(0.2, 5.0), min_size=5, max_size=5),
  joule=st.floats(-12, 12),  # powers of ten, of a joule and of a width
  width=st.floats(-6, 6),
  seed=st.integers(0, 99),
)
def test_known_coefficients_are_recovered(
  variant, weights, shares, joule, width, seed
):
  law = Simple(variant, weights)
  made = EVEN[variant] * shares[: len(law.terms)] * 10**joule
  joules_N = law.columns(TABLE) @ made
  np.testing.assert_allclose(law.fit(TABLE, joules_N).coef_, made, rtol=1e-6)
  # With noise: as far off as the noise and the columns' likeness explain.
  noisy_N = noisy(joules_N, 0.01, seed)
  coef_J = law.fit(TABLE, noisy_N).coef_
  weight_N = 1 / noisy_N if weights == 'relative' else np.ones(len(TABLE))
  design_NJ = law.columns(TABLE) * weight_N[:, None] * made
  error_N = 0.01 * joules_N * weight_N
  inverse_JN = np.linalg.pinv(design_NJ)
  sigma_J = np.sqrt(np.sum((inverse_JN * error_N) ** 2, axis=1))
  assert (np.abs(coef_J / made - 1) < 6 * sigma_J + 1e-3).all()
  # In other units of the width, coefficients change by its powers only.
  scaled_NJ = law.columns(TABLE) * 10 ** (width * np.arange(len(made)))
  again_J = fit.least_squares(scaled_NJ, noisy_N, law.names, weights)
  np.testing.assert_allclose(
    again_J * 10 ** (width * np.arange(len(made))), coef_J, rtol=1e-5,
    atol=1e-9 * made.min(),
  )  # fmt: skip


def test_no_coefficient_is_negative():
  law = Simple()
  made = EVEN['kv_split'] * [1, 1, -0.3, 1]
  law.fit(TABLE, np.abs(law.columns(TABLE) @ made) + 1e-3)
  assert (law.coef_ >= 0).all() and law.coef_[2] == 0


def test_each_weighting_is_best_at_its_own_error():
  # A law that cannot be met, and joules over four orders of magnitude.
  joules_N = Simple('physical').columns(TABLE) @ EVEN['physical']
  error_N = {
    weights: Simple(weights=weights).fit(TABLE, joules_N).predict(TABLE)
    - joules_N
    for weights in fit.WEIGHTS
  }
  relative, absolute = (error_N[weights] for weights in fit.WEIGHTS)
  assert np.sum(absolute**2) < 0.95 * np.sum(relative**2)
  relative, absolute = relative / joules_N, absolute / joules_N
  assert np.sum(relative**2) < 0.95 * np.sum(absolute**2)


def test_sweetspot_knows_each_model():
  law = SweetSpot()
  made = {name: 10.0 ** -np.array([2, 5, 5, 5, 2]) * (i + 1)
          for i, name in enumerate(SIX)}  # fmt: skip
  coef_NJ = np.stack([made[name] for name in TABLE.model_N.tolist()])
  joules_N = np.sum(law.columns(TABLE) * coef_NJ, axis=1)
  law.fit(TABLE, joules_N)
  assert list(law.coef_) == list(SIX) and len(NAMES) == 5
  for name in SIX:
    np.testing.assert_allclose(law.coef_[name], made[name], rtol=1e-6)
  np.testing.assert_allclose(law.predict(TABLE), joules_N)


def test_scores_by_hand():
  table = dataclasses.replace(TABLE[:2], output_N=np.array([1.0, 2.0]))
  true_N = np.array([10.0, 30.0])
  found = fit.scores(table, true_N, np.array([12.0, 27.0]))
  assert found.mape == pytest.approx((20 + 10) / 2)
  assert found.r2 == pytest.approx(1 - (4 + 9) / 200)
  assert found.r2_per_token == pytest.approx(1 - (4 + 2.25) / 12.5)
  assert fit.scores(TABLE[:1], [1.0], np.array([2.0])).r2 is None


def test_what_is_held_out_is_not_seen():
  joules_N = noisy(Simple().columns(TABLE) @ EVEN['kv_split'], 0.02)
  for what, folds in (('model', 6), ('family', 3)):
    splits = fit.leave_one_out(TABLE, what)
    assert len(splits) == folds
    assert (sum(s.test_N.astype(int) for s in splits) == 1).all()
    held_N, there_N = fit.predict_held_out(Simple(), TABLE, joules_N, splits)
    assert there_N.all()
    # Garbage in one group changes the predictions of all others, not its own.
    spoilt_N = np.where(splits[0].test_N, 3 * joules_N, joules_N)
    other_N, _ = fit.predict_held_out(Simple(), TABLE, spoilt_N, splits)
    same_N = np.isclose(held_N, other_N, rtol=1e-9)
    assert same_N[splits[0].test_N].all()
    assert not same_N[splits[1].test_N].any()
  (split,) = fit.extrapolation(TABLE)
  assert TABLE.input_N[split.train_N].max() == 1024
  assert set(TABLE.input_N[split.test_N]) == {4096}


def test_bootstrap_draws_models():
  law = Simple()
  joules_N = law.columns(TABLE) @ EVEN['kv_split']
  coef_RJ = fit.bootstrap(law, TABLE, joules_N, 20)
  np.testing.assert_allclose(coef_RJ, [EVEN['kv_split']] * 20, rtol=1e-6)
  # An error that a model's cells share widens the interval; the same errors
  # dealt out to cells average away.
  model_N = np.array([SIX.index(name) for name in TABLE.model_N.tolist()])
  spread = [
    np.std(fit.bootstrap(law, TABLE, joules_N * factor_N, 200), axis=0)
    for factor_N in (1 + 0.2 * (-1) ** model_N,
                     1 + 0.2 * (-1) ** np.arange(len(TABLE)))
  ]  # fmt: skip
  assert spread[0][0] > 2 * spread[1][0]


def test_bad_input(refused):
  good_N = Simple().columns(TABLE) @ EVEN['kv_split']
  spoilt_N = good_N.copy()
  spoilt_N[3] = -1
  with refused('joules of cell 3 are -1, expected more than 0'):
    Simple().fit(TABLE, spoilt_N)
  with refused('joules of cell 3 are nan, expected more than 0'):
    Simple().fit(TABLE, np.where(spoilt_N < 0, np.nan, good_N))
  with refused(f'joules have shape (3,), expected one of each of {len(TABLE)}'
               ' cells'):  # fmt: skip
    Simple().fit(TABLE, good_N[:3])
  with refused('3 cells for 4 coefficients, expected at least as many'):
    Simple().fit(TABLE[:3], good_N[:3])
  one = TABLE.model_N == SIX[0]
  with refused('leave one model out: 1 model in the cells, expected at ...'):
    fit.leave_one_out(TABLE[one])
  with refused('leave one family out: 1 family in the cells, expected ...'):
    fit.leave_one_out(TABLE[one], 'family')
  with refused('bootstrap over models: 1 in the cells, expected at least 3'):
    fit.bootstrap(Simple(), TABLE[one], good_N[one])
  with refused('extrapolation: no cell has an input of at least 9000 ...'):
    fit.extrapolation(TABLE, predict_from=9000)
  with refused("SweetSpot was not fitted to 'smollm2-1.7b'"):
    SweetSpot().fit(TABLE[one], good_N[one]).predict(TABLE)
  # One model cannot tell D^2 from D: without the other, neither can a fold.
  two = one | (TABLE.model_N == SIX[1])
  splits = fit.leave_one_out(TABLE[two])
  with refused('without smollm2-135m: columns L D^2 O, L D O are collinear '
               '...'):  # fmt: skip
    fit.predict_held_out(Simple('single_kv'), TABLE[two], good_N[two], splits)
  short = grid(SIX[:1], (64, 128, 256, 512, 1024, 4096))
  short = short[short.output_N == 64]
  with refused('smollm2-135m: columns ... are collinear in these ...'):
    SweetSpot().fit(short, np.ones(len(short)))


def test_a_column_of_zeros(refused):
  columns_NJ = np.array([[1.0, 0.0], [2.0, 0.0]])
  with refused('column b is zero in every cell: drop its term'):
    fit.least_squares(columns_NJ, [1.0, 2.0], ('a', 'b'))
