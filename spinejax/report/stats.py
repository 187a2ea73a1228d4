"""What is computed from the counts and times of a decoding run.

Letters of the array names: P prompts, K accepted counts 0..S of a draft of S
proposals, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

# A run of equal tokens as short as three is ordinary text (spaces, a rule of
# dashes), so a repeated stretch must also be this long to count.
_SHORTEST_STRETCH = 24


class Interval(NamedTuple):
  """An estimate with its 95 % interval, None where it cannot be had."""

  value: float
  low: float | None
  high: float | None


class Acceptance(NamedTuple):
  """How far rounds get, slot by slot; lists fit for a metric row.

  Attributes:
    by_position: P(slot j accepted) for j = 1..S. Slot j counts as accepted
      only with all slots before it.
    conditional: P(slot j accepted | slot j - 1 accepted), None where no round
      accepted slot j - 1.
  """

  by_position: list[float]
  conditional: list[float | None]


class Speedup(NamedTuple):
  """Time of the baseline over time of the candidate.

  Attributes:
    median: median over prompts of each prompt's own ratio, with its interval.
      Machine speed drifts; both sides of one prompt ran next to each other, so
      drift cancels here.
    total: ratio of the summed times, which weighs prompts by their length.
  """

  median: Interval
  total: float


def tokens_per_round(
  emitted_P: Sequence[int],
  rounds_P: Sequence[int],
  *,
  seed: int = 0,
  resamples: int = 2000,
) -> Interval:
  """Tokens emitted per round, pooled over prompts.

  Args:
    emitted_P: tokens of each prompt after all cuts (stop tokens, caps), the
      always-emitted ones included.
    rounds_P: draft-and-verify rounds of each prompt. A prompt without rounds
      must have emitted nothing, and is left out.
    seed: of the bootstrap.
    resamples: of the bootstrap.

  Returns:
    The ratio of the sums, and its percentile bootstrap interval over prompts;
    a single prompt has no interval.

  Raises:
    ValueError: shapes that differ, no rounds, or negative counts.
  """
  emitted_P, rounds_P = _paired('emitted_P', emitted_P, 'rounds_P', rounds_P)
  if (bad_P := (rounds_P < 0) | (emitted_P < 0)).any():
    raise ValueError(f'prompt {bad_P.argmax()}: negative count')
  if (bad_P := (rounds_P == 0) & (emitted_P > 0)).any():
    i = bad_P.argmax()
    raise ValueError(f'prompt {i}: {emitted_P[i]:g} tokens in 0 rounds')
  kept_P = rounds_P > 0
  if not kept_P.any():
    raise ValueError('rounds_P: expected at least one round, got 0')

  def ratio(emitted, rounds, axis=-1):
    return emitted.sum(axis) / rounds.sum(axis)

  data = (emitted_P[kept_P], rounds_P[kept_P])
  return _bootstrap(ratio, data, seed, resamples)


def mean_ratio(
  ours: Sequence[tuple[Sequence[int], Sequence[int]]],
  theirs: Sequence[tuple[Sequence[int], Sequence[int]]],
  *,
  seed: int = 0,
  resamples: int = 2000,
) -> Interval:
  """Mean tokens a round over several sets of prompts, ours over theirs.

  Args:
    ours, theirs: tokens and rounds by prompt (see `tokens_per_round`), a pair
      a set; the same prompts in the same order in both.
    seed: of the bootstrap.
    resamples: of the bootstrap.

  Returns:
    The ratio, and its percentile bootstrap interval: the prompts of each set
    are drawn anew, for both sides the same. A set of one prompt tells nothing
    of how prompts differ: then there is no interval.

  Raises:
    ValueError: sets or prompts differ in number.
  """
  rng = np.random.default_rng(seed)
  means = np.zeros((2, resamples + 1))
  for mine, other in zip(ours, theirs, strict=True):
    counts = [_paired('tokens', a, 'rounds', b) for a, b in (mine, other)]
    P = len(counts[0][0])
    _paired('ours', counts[0][0], 'theirs', counts[1][0])
    drawn = rng.integers(0, P, (resamples, P))
    weight = np.stack([np.bincount(row, minlength=P) for row in drawn])
    weight = np.concatenate([np.ones((1, P)), weight])  # first: as they are
    for mean, (tokens_P, rounds_P) in zip(means, counts, strict=True):
      mean += (weight @ tokens_P) / (weight @ rounds_P)
  ratio = means[0] / means[1]
  if any(len(tokens) < 2 for tokens, _ in ours):
    return Interval(float(ratio[0]), None, None)
  low, high = np.quantile(ratio[1:], (0.025, 0.975))
  return Interval(float(ratio[0]), float(low), float(high))


def is_repetitive(
  tokens_T: Sequence[int], *, window: int = 64, longest: int = 16
) -> bool:
  """Whether a text has fallen into a loop at its end.

  The rule: somewhere in the last `window` tokens an n-gram, n <= `longest`,
  stands three or more times in a row, and the copies cover 24 tokens or more.
  The second half keeps three spaces or dashes from counting; for n >= 8 it
  asks for nothing that three copies do not give. Copies may be cut off at
  either end: only the stretch with period n is measured.

  Args:
    tokens_T: the generated tokens of one prompt, without the prompt.
    window: tokens at the end that are looked at.
    longest: longest n-gram that is looked for.
  """
  end_T = np.asarray(tokens_T, np.int64)[-window:]
  for n in range(1, longest + 1):
    needed = max(3 * n, _SHORTEST_STRETCH) - n
    run = 0
    for same in (end_T[n:] == end_T[:-n]).tolist():
      run = run + 1 if same else 0
      if run >= needed:
        return True
  return False


def acceptance(accepted_hist_K: Sequence[int]) -> Acceptance:
  """Acceptance by position from counts of rounds by accepted proposals.

  Args:
    accepted_hist_K: entry k counts the rounds that accepted exactly k of S
      proposals, K = S + 1. Leading axes (requests, prompts) are pooled.

  Raises:
    ValueError: no rounds, negative counts, or fewer than two entries.
  """
  hist_K = np.asarray(accepted_hist_K, np.float64)
  if hist_K.ndim == 0 or hist_K.shape[-1] < 2:
    raise ValueError(
      f'accepted_hist_K: expected [..., S + 1], got shape {hist_K.shape}'
    )
  if (hist_K < 0).any():
    raise ValueError('accepted_hist_K: negative count')
  hist_K = hist_K.reshape(-1, hist_K.shape[-1]).sum(0)
  reached_K = hist_K[::-1].cumsum()[::-1]  # rounds that accepted k or more
  if reached_K[0] == 0:
    raise ValueError('accepted_hist_K: expected at least one round, got 0')
  return Acceptance(
    by_position=(reached_K[1:] / reached_K[0]).tolist(),
    conditional=[
      float(now / before) if before else None
      for before, now in zip(reached_K[:-1], reached_K[1:], strict=True)
    ],
  )


def speedup(
  plain_P: Sequence[float],
  candidate_P: Sequence[float],
  *,
  seed: int = 0,
  resamples: int = 2000,
) -> Speedup:
  """How many times faster a candidate decodes the same prompts.

  Args:
    plain_P: time of plain decoding of each prompt, in any one unit.
    candidate_P: the candidate's time on the same prompts, run interleaved
      with plain decoding, prompt by prompt, for the same number of tokens.
    seed: of the bootstrap.
    resamples: of the bootstrap.

  Raises:
    ValueError: shapes that differ, no prompts, or a time that is not positive
      and finite.
  """
  plain_P, candidate_P = _paired('plain_P', plain_P, 'candidate_P', candidate_P)
  for name, time_P in (('plain_P', plain_P), ('candidate_P', candidate_P)):
    if (bad_P := ~((time_P > 0) & np.isfinite(time_P))).any():
      i = bad_P.argmax()
      raise ValueError(
        f'{name}: expected positive times, got {time_P[i]:g} at prompt {i}'
      )

  def median(ratio, axis=-1):
    return np.median(ratio, axis)

  return Speedup(
    median=_bootstrap(median, (plain_P / candidate_P,), seed, resamples),
    total=float(plain_P.sum() / candidate_P.sum()),
  )


def _paired(
  name: str, values: Any, other_name: str, others: Any
) -> tuple[np.ndarray, np.ndarray]:
  values, others = np.asarray(values, float), np.asarray(others, float)
  if values.ndim != 1 or values.shape != others.shape or not values.size:
    raise ValueError(
      f'{name} and {other_name}: expected one value a prompt, got shapes'
      f' {values.shape} and {others.shape}'
    )
  return values, others


def _bootstrap(
  statistic: Callable[..., np.ndarray],
  data: tuple[np.ndarray, ...],
  seed: int,
  resamples: int,
) -> Interval:
  value = float(statistic(*data))
  if len(data[0]) < 2:
    return Interval(value, None, None)
  # Percentile and not BCa: BCa is NaN when all prompts agree, as they do for
  # plain decoding (one token a round).
  found = scipy.stats.bootstrap(
    data,
    statistic,
    paired=True,
    vectorized=True,
    method='percentile',
    n_resamples=resamples,
    batch=500,  # bounds memory at thousands of prompts
    rng=np.random.default_rng(seed),
  ).confidence_interval
  return Interval(value, float(found.low), float(found.high))
