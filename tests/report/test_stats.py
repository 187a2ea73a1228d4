"""Statistics of decoding runs, against values worked out by hand."""

import json
import re

import numpy as np
import pytest

from spinejax.report import stats


def test_tokens_per_round_pools_and_does_not_average():
  # 300 tokens in 110 rounds; the mean of the ratios would be 6.
  assert stats.tokens_per_round([200, 100], [100, 10]).value == 300 / 110


def test_tokens_per_round_interval_covers_as_often_as_it_says():
  # Truth: prompts with 1 or 3 tokens a round in equal numbers, 2 overall.
  rng = np.random.default_rng(0)
  covered = 0
  for seed in range(100):
    rate_P = rng.choice([1, 3], 60)
    found = stats.tokens_per_round(
      20 * rate_P, np.full(60, 20), seed=seed, resamples=400
    )
    covered += found.low <= 2 <= found.high
  assert 87 <= covered <= 100


def test_tokens_per_round_is_reproducible_by_seed():
  emitted, rounds = np.arange(50, 90), np.arange(30, 70)
  first = stats.tokens_per_round(emitted, rounds, seed=3)
  assert first == stats.tokens_per_round(emitted, rounds, seed=3)
  assert first != stats.tokens_per_round(emitted, rounds, seed=4)


def test_tokens_per_round_without_spread_has_no_width():
  # Plain decoding: one token a round, in texts of any length.
  assert stats.tokens_per_round([3, 70, 256], [3, 70, 256]) == (1, 1, 1)


def test_one_prompt_has_no_interval():
  assert stats.tokens_per_round([5], [2]) == (2.5, None, None)
  assert stats.speedup([3.0], [2.0]) == ((1.5, None, None), 1.5)


def test_prompts_without_rounds_are_left_out():
  assert stats.tokens_per_round([5, 0], [2, 0]) == (2.5, None, None)


@pytest.mark.parametrize(
  ('emitted', 'rounds', 'message'),
  [
    (
      [1],
      [1, 2],
      'emitted_P and rounds_P: expected one value a prompt, got'
      ' shapes (1,) and (2,)',
    ),
    (
      [],
      [],
      'emitted_P and rounds_P: expected one value a prompt, got shapes'
      ' (0,) and (0,)',
    ),
    ([1, 4], [1, 0], 'prompt 1: 4 tokens in 0 rounds'),
    ([1, 4], [1, -1], 'prompt 1: negative count'),
    ([0], [0], 'rounds_P: expected at least one round, got 0'),
  ],
)
def test_tokens_per_round_refuses(emitted, rounds, message):
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    stats.tokens_per_round(emitted, rounds)


@pytest.mark.parametrize('n', range(1, 17))
def test_a_loop_of_up_to_16_tokens_is_repetitive(n):
  copies = -(-max(3 * n, 24) // n)
  assert stats.is_repetitive(list(range(100, 120)) + list(range(n)) * copies)


@pytest.mark.parametrize(
  ('tokens', 'repetitive'),
  [
    ([], False),
    ([1], False),
    (list(range(64)), False),
    (list(range(17)) * 4, False),  # the n-gram is too long
    (list(range(16)) * 2, False),  # twice is not three times
    ((list(range(16)) * 3)[:-1], False),  # one token short of it
    ([7] * 23, False),  # as in a rule of dashes
    ([7] * 24, True),
    (list(range(8)) * 3 + list(range(100, 140)), True),  # and went on
    (list(range(8)) * 3 + list(range(100, 164)), False),  # before the window
    ([1, 2, 3, 4, 90, 1, 2, 3, 4, 91] * 2 + list(range(8)), False),
    ([*range(8), 50] * 2 + list(range(8)), False),  # nine tokens, 26 of 27
  ],
)
def test_is_repetitive(tokens, repetitive):
  assert stats.is_repetitive(tokens) is repetitive


def test_acceptance_by_position():
  # Ten rounds: 4 accepted nothing, 3 one, 1 two, 2 all three.
  found = stats.acceptance([4, 3, 1, 2])
  assert found.by_position == pytest.approx([0.6, 0.3, 0.2])
  assert found.conditional == pytest.approx([0.6, 0.5, 2 / 3])
  json.dumps(found, allow_nan=False)


def test_acceptance_pools_requests_and_agrees_with_tokens_per_round():
  hist_BK = np.random.default_rng(0).integers(0, 9, (5, 8))
  by_position = stats.acceptance(hist_BK).by_position
  assert by_position == stats.acceptance(hist_BK.sum(0)).by_position
  # Without cuts a round emits what it accepts and one token more.
  mean = (hist_BK * np.arange(1, 9)).sum() / hist_BK.sum()
  assert 1 + sum(by_position) == pytest.approx(mean)


def test_conditional_acceptance_is_none_where_no_round_got_to():
  assert stats.acceptance([5, 5, 0, 0]).conditional == [0.5, 0.0, None]


@pytest.mark.parametrize(
  ('hist', 'message'),
  [
    ([0, 0], 'accepted_hist_K: expected at least one round, got 0'),
    ([3, -1], 'accepted_hist_K: negative count'),
    ([3], 'accepted_hist_K: expected [..., S + 1], got shape (1,)'),
  ],
)
def test_acceptance_refuses(hist, message):
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    stats.acceptance(hist)


def test_speedup_is_a_median_of_ratios_that_drift_does_not_touch():
  rng = np.random.default_rng(0)
  drift_P = rng.uniform(1, 1.6, 41)
  plain_P = rng.uniform(1, 9, 41)
  found = stats.speedup(drift_P * plain_P, drift_P * plain_P / 1.5)
  assert found.median == pytest.approx((1.5, 1.5, 1.5))
  assert found.total == pytest.approx(1.5)


def test_speedup_total_weighs_by_time():
  found = stats.speedup([1, 1, 8], [1, 1, 2])
  assert found.median.value == 1
  assert found.total == 2.5
  assert (found.median.low, found.median.high) == (1, 4)


@pytest.mark.parametrize('time', [0.0, -1.0, np.nan, np.inf])
def test_speedup_refuses_times_that_are_none(time):
  message = f'candidate_P: expected positive times, got {time:g} at prompt 1'
  with pytest.raises(ValueError, match=f'^{message}$'):
    stats.speedup([1.0, 1.0], [1.0, time])
