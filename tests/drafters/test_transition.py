"""Candidates and the walk over them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from spinejax.drafters.transition import (
  path,
  predecessors,
  walk,
)
from spinejax.top import top_k
from spinejax.verify.sampling import Sampling, Stream, round_keys

RNG = np.random.default_rng(0)


def keys(batch):
  return round_keys(
    jnp.arange(batch, dtype=jnp.uint32), jnp.zeros(batch, int), Stream.DRAFT
  )


# Compiled once for the shapes of most tests here.
fast_walk = jax.jit(walk)


def softmax(x):
  x = np.asarray(x, np.float64)
  exp = np.exp(x - x.max(-1, keepdims=True))
  return exp / exp.sum(-1, keepdims=True)


@pytest.mark.parametrize('count', [1, 4, 16])
@pytest.mark.parametrize('V', [97, 2048, 2049, 5000])
@pytest.mark.parametrize('kind', ['plain', 'ties', 'few', 'none'])
def test_top_k_is_that_of_jax(V, count, kind):
  logits = RNG.normal(size=(2, 3, V)).astype(np.float32)
  if kind == 'ties':
    logits = np.rint(logits)
  if kind == 'few':  # fewer finite logits than candidates, the last one too
    finite = RNG.integers(0, V, (2, 3, 3))
    finite[..., -1] = V - 1
    keep = np.zeros(logits.shape, bool)
    np.put_along_axis(keep, finite, True, axis=-1)
    logits = np.where(keep, logits, -np.inf)
  if kind == 'none':
    logits[:] = -np.inf
  for got, want in zip(
    top_k(logits, count), jax.lax.top_k(logits, count), strict=True
  ):
    np.testing.assert_array_equal(got, want)


def test_predecessors_are_the_anchor_then_the_slot_before():
  candidates_BSN = jnp.arange(12).reshape(1, 3, 4)
  np.testing.assert_array_equal(
    predecessors(candidates_BSN, jnp.array([99]))[0],
    [[99] * 4, [0, 1, 2, 3], [4, 5, 6, 7]],
  )


def test_greedy_walk_takes_the_best_after_the_chosen_one():
  scores = RNG.normal(size=(4, 15, 16, 16)).astype(np.float32)
  candidates = RNG.integers(0, 1000, (4, 15, 16))
  tokens_BS, law_BSN = fast_walk(scores, candidates, None, Sampling.make(4))
  for b in range(4):
    at = 0
    for j in range(15):
      at = np.argmax(scores[b, j, at])
      assert tokens_BS[b, j] == candidates[b, j, at]
      np.testing.assert_array_equal(law_BSN[b, j], np.eye(16)[at])


def test_sampled_paths_follow_the_chain_of_softmax_rows():
  B, S, N, temperature = 30_000, 2, 3, 0.8
  table = RNG.normal(size=(S, N, N)).astype(np.float32)
  table[0] = table[0, 0]  # slot 1 has one predecessor, the anchor
  candidates = np.array([[4, 5, 6], [7, 8, 9]])
  tokens_BS, law_BSN = fast_walk(
    jnp.broadcast_to(table, (B, S, N, N)),
    jnp.broadcast_to(candidates, (B, S, N)),
    keys(B),
    Sampling.make(B, temperature),
  )
  chain = softmax(table / temperature)
  index_BS = np.asarray(tokens_BS) - candidates[:, 0]
  paths = list(itertools.product(range(N), repeat=S))
  law = np.array([chain[0, 0, i] * chain[1, i, k] for i, k in paths])
  seen = [np.all(index_BS == path, axis=1).sum() for path in paths]
  assert stats.chisquare(seen, law / law.sum() * B).pvalue > 1e-3
  # The stated law is the row that the token was drawn from.
  np.testing.assert_allclose(law_BSN[:, 0], [chain[0, 0]] * B, atol=1e-6)
  np.testing.assert_allclose(law_BSN[:, 1], chain[1, index_BS[:, 0]], atol=1e-6)


@pytest.mark.parametrize('temperature', (0.0, 0.8))
def test_confidence_is_the_best_of_the_row_and_not_what_was_drawn(temperature):
  B, S, N = 50, 3, 4
  scores = RNG.normal(size=(B, S, N, N)).astype(np.float32)
  candidates = np.broadcast_to(np.arange(S * N).reshape(S, N), (B, S, N))
  sampling = Sampling.make(B, temperature)
  found = path(scores, jnp.array(candidates), keys(B), sampling)
  rows = softmax(scores / (temperature or 1.0))
  index_BS = np.asarray(found.tokens_BS) % N
  before_BS = np.pad(index_BS[:, :-1], ((0, 0), (1, 0)))
  for b, j in np.ndindex(B, S):
    best = rows[b, j, before_BS[b, j]].max()
    np.testing.assert_allclose(found.confidence_BS[b, j], best, atol=1e-6)


def test_temperature_is_per_request_and_zero_is_greedy():
  B, S, N = 4, 15, 16
  scores = RNG.normal(size=(B, S, N, N)).astype(np.float32)
  candidates = RNG.integers(0, 1000, (B, S, N))
  sampling = dataclasses.replace(
    Sampling.make(B, 1.0), temperature_B=jnp.array([0.0, 1.0, 0.0, 1e-4])
  )
  tokens_BS, law_BSN = fast_walk(scores, candidates, keys(B), sampling)
  best_BS, one_hot = fast_walk(scores, candidates, None, Sampling.make(B))
  np.testing.assert_array_equal(tokens_BS[::2], best_BS[::2])
  np.testing.assert_array_equal(law_BSN[::2], one_hot[::2])
  np.testing.assert_array_equal(tokens_BS[3], best_BS[3])
  assert np.any(tokens_BS[1] != best_BS[1])
  np.testing.assert_allclose(law_BSN[1].sum(-1), 1, atol=1e-6)
  assert law_BSN[1].max() < 0.9


def test_what_a_request_draws_does_not_depend_on_its_place():
  scores = RNG.normal(size=(4, 15, 16, 16)).astype(np.float32)
  candidates = RNG.integers(0, 1000, (4, 15, 16))
  sampling = Sampling.make(4, 1.0)
  drawn, _ = fast_walk(scores, candidates, keys(4), sampling)
  turned, _ = fast_walk(scores[::-1], candidates[::-1], keys(4)[::-1], sampling)
  np.testing.assert_array_equal(drawn, turned[::-1])
