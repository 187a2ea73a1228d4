"""The target's sampling law, and the keys that randomness hangs on.

The golden laws, and the cases of `test_chain`, were computed with z-lab/dflash
`model.py` (commit 1012959): `_sampling_probs`, and `_rejection_sample` with
given uniforms.
"""

import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.verify.sampling import (
  Sampling,
  Stream,
  gumbel,
  kth_largest,
  law,
  round_keys,
)

GOLDEN = load_file(
  pathlib.Path(__file__).parents[1] / 'golden/sampling/sampling.safetensors'
)
TEMPERATURES = (0.0, 0.3, 1.0, 1.7)
TOP_KS = (0, 1, 3, 10, 99)
TOP_PS = (0.0, 0.2, 0.9, 1.0)


def sampling_of(settings):
  """One request for each (temperature, top_k, top_p)."""
  temperature, top_k, top_p = zip(*settings, strict=True)
  return Sampling(
    jnp.asarray(temperature, jnp.float32),
    jnp.asarray(top_k, jnp.int32),
    jnp.asarray(top_p, jnp.float32),
    greedy=False,
  )


def reference(logits_V, temperature, top_k, top_p):
  """The same law, a token at a time, in float64; ties are kept together."""
  logits = np.asarray(logits_V, np.float64)
  V = len(logits)
  if temperature == 0:
    return np.eye(V)[logits.argmax()]
  scaled = logits / temperature
  kth = np.sort(scaled)[::-1][min(top_k or V, V) - 1]
  weight = np.where(scaled >= kth, np.exp(scaled - scaled.max()), 0)
  probs = weight / weight.sum()
  lowest, mass = np.inf, 0.0
  for t in np.argsort(-probs, kind='stable'):
    if probs[t] == 0 or (mass >= top_p and mass > 0):
      break
    lowest, mass = probs[t], mass + probs[t]
  probs = np.where(probs >= lowest, probs, 0)
  return probs / probs.sum()


@pytest.mark.parametrize('case', range(5))
def test_golden(case):
  temperature, top_p, top_k = GOLDEN[
    f'probs.{case}.temperature_top_p_top_k'
  ].tolist()
  got = law(
    jnp.asarray(GOLDEN['logits']),
    Sampling.make(1, temperature, int(top_k), top_p),
  )
  np.testing.assert_allclose(got, GOLDEN[f'probs.{case}'], atol=1e-6)


def test_every_combination_of_settings_beside_each_other():
  settings = list(itertools.product(TEMPERATURES, TOP_KS, TOP_PS))
  rng = np.random.default_rng(0)
  logits_BKV = rng.normal(size=(len(settings), 4, 12)).astype(np.float32) * 3
  got = np.asarray(law(jnp.asarray(logits_BKV), sampling_of(settings)))
  for logits_KV, got_KV, setting in zip(logits_BKV, got, settings, strict=True):
    want_KV = [reference(logits_V, *setting) for logits_V in logits_KV]
    np.testing.assert_allclose(got_KV, want_KV, atol=1e-6, err_msg=str(setting))


def test_shape_and_dtype():
  for shape in ((2, 7), (2, 3, 7)):
    got = law(jnp.ones(shape, jnp.bfloat16), Sampling.make(2, 1.0))
    assert (got.shape, got.dtype) == (shape, jnp.float32)


@pytest.mark.parametrize(
  'top_k, top_p, kept',
  ((2, 1.0, 4), (1, 1.0, 1), (0, 0.5, 4), (5, 1.0, 8), (3, 0.3, 1)),
)
def test_what_ties_with_the_last_one_kept_is_kept(top_k, top_p, kept):
  logits_V = np.log(np.array([1, 3, 2, 1, 2, 1, 1, 2]) / 13, dtype=np.float32)
  got = law(jnp.asarray(logits_V[None]), Sampling.make(1, 1.0, top_k, top_p))
  want_V = reference(logits_V, 1.0, top_k, top_p)
  assert (want_V > 0).sum() == kept
  np.testing.assert_allclose(got[0], want_V, atol=1e-6)


def test_temperature_zero_is_one_hot_at_the_first_best():
  logits_BV = jnp.asarray([[1.0, 5.0, 5.0], [3.0, 2.0, 1.0]])
  got = law(logits_BV, sampling_of([(0.0, 2, 0.5), (0.0, 0, 1.0)]))
  np.testing.assert_array_equal(got, [[0, 1, 0], [1, 0, 0]])


def test_top_p_zero_and_top_k_one_keep_the_best():
  logits_BV = jnp.asarray([[1.0, 2.0, 3.0]] * 2)
  got = law(logits_BV, sampling_of([(1.0, 0, 0.0), (1.0, 1, 1.0)]))
  np.testing.assert_array_equal(got, [[0, 0, 1]] * 2)


def test_off_is_off_whatever_the_neighbours_ask_for():
  """A tail whose mass is below the rounding of the sum stays drawable."""
  logits_BV = np.full((2, 100), -25.0, np.float32)
  logits_BV[:, 7] = 0.0
  alone = law(jnp.asarray(logits_BV), sampling_of([(1.0, 0, 1.0)] * 2))
  beside = law(
    jnp.asarray(logits_BV), sampling_of([(1.0, 0, 1.0), (1.0, 9, 0.5)])
  )
  np.testing.assert_array_equal(beside[0], alone[0])
  assert (beside[0] > 0).all()
  assert (beside[1] > 0).sum() == 1


def test_greedy_flag_of_make():
  assert Sampling.make(3).greedy
  made = Sampling.make(3, 0.5, 4, 0.9)
  assert not made.greedy
  np.testing.assert_array_equal(made.temperature_B, np.float32([0.5] * 3))
  np.testing.assert_array_equal(made.top_k_B, [4] * 3)
  np.testing.assert_array_equal(made.top_p_B, np.float32([0.9] * 3))


def key_bits(seeds, positions, stream):
  keys = round_keys(
    jnp.asarray(seeds, jnp.uint32), jnp.asarray(positions), stream
  )
  return [tuple(row) for row in np.asarray(jax.random.key_data(keys)).tolist()]


def test_keys_differ_by_seed_position_and_stream():
  seeds, positions = zip(*itertools.product(range(20), range(20)), strict=True)
  keys = [k for s in Stream for k in key_bits(seeds, positions, s)]
  assert len(set(keys)) == 20 * 20 * len(Stream)


def test_keys_do_not_depend_on_the_batch():
  seeds, positions = [5, 0, 7, 5], [1, 3, 2**20, 1]
  together = key_bits(seeds, positions, Stream.DRAFT)
  alone = [
    key_bits([s], [p], Stream.DRAFT)[0]
    for s, p in zip(seeds, positions, strict=True)
  ]
  assert together == alone
  assert together[0] == together[3]


def test_gumbel_noise_is_that_of_each_key():
  keys_B = round_keys(
    jnp.arange(3, dtype=jnp.uint32), jnp.arange(3), Stream.ACCEPT
  )
  together = gumbel(keys_B, (4, 5))
  assert together.shape == (3, 4, 5)
  np.testing.assert_array_equal(together[1:2], gumbel(keys_B[1:2], (4, 5)))
  assert len(np.unique(together)) == together.size


def test_make_takes_one_value_or_one_for_each_request():
  made = Sampling.make(2, [0.0, 0.7], 5, [1.0, 0.9])
  np.testing.assert_allclose(made.temperature_B, [0.0, 0.7])
  np.testing.assert_array_equal(made.top_k_B, [5, 5])
  np.testing.assert_allclose(made.top_p_B, [1.0, 0.9])
  assert not made.greedy
  assert Sampling.make(2, [0.0, 0.0]).greedy


def test_make_refuses_another_number_of_values(refused):
  with refused('top_k has 3 values, expected one or 2'):
    Sampling.make(2, 1.0, [1, 2, 3])
  with refused('temperature = -1.0, expected 0 (greedy) or 0.0001..10000'):
    Sampling.make(2, [0.5, -1.0])


def test_kth_largest_is_that_of_a_sort():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(6, 2, 301)).astype(np.float32) * 1e3
  x[0, 0, :200] = -np.inf
  x[1, 0] = np.round(x[1, 0] / 1e3)  # ties, and both zeros
  x[1, 1, :7], x[2, 0, 5] = -0.0, np.inf
  k = np.array([1, 2, 60, 150, 301, 999])[:, None, None]
  found = kth_largest(jnp.asarray(x), jnp.asarray(k))
  ordered = -np.sort(-x, axis=-1)
  wanted = np.take_along_axis(
    ordered, np.broadcast_to(np.minimum(k, 301) - 1, (6, 2, 1)), -1
  )
  np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize('most', (64, 500))
def test_top_k_alone_keeps_what_the_sort_keeps(most):
  """Ways to one law: without, and with, somebody who asks for top-p."""
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.normal(size=(5, 97)), jnp.float32)
  logits = logits.at[1, 5:9].set(4.0)  # equals are kept together
  top_k, cold = [0, 1, 7, 64, most], [1.0, 0.5, 2.0, 1.0, 1.0]
  alone = Sampling.make(5, cold, top_k)
  beside = Sampling.make(6, [*cold, 1.0], [*top_k, 0], [1.0] * 5 + [0.5])
  both = law(jnp.concatenate([logits, logits[:1]]), beside)
  np.testing.assert_array_equal(law(logits, alone), both[:5])
  kept = np.count_nonzero(both, axis=-1)
  assert kept[:5].tolist() == [97, 4, 7, 64, min(most, 97)] and kept[5] < 97
