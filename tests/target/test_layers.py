"""What CPUs do otherwise gives the same numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.target import layers as nn


def normal(*shape, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('rows', (1, 2, 3, 4, 7, 8, 9))
@pytest.mark.parametrize(
  ('lines', 'width'),
  ((6, 40), (5, 40), (6, 1100)),  # read in pairs; odd; long
)
def test_products_of_few_rows(rows, lines, width):
  x, weight = normal(rows, width), normal(lines, width, seed=1)
  got = jax.jit(nn.dense)(x, weight)
  exact = x.astype(np.float64) @ weight.T.astype(np.float64)
  np.testing.assert_allclose(got, exact, atol=1e-4)


@pytest.mark.parametrize('capacity', (512, 640, 1024, 2500))
@pytest.mark.parametrize('ends', ((511, 3), (512, 512), (513, 40), (0, 640)))
def test_a_prefix_holds_all_that_is_seen(capacity, ends):
  """Rows past what is seen have no say."""
  rows, ends = 4, np.minimum(ends, capacity - 4)
  q = normal(2, rows, 2, 3, 8)
  k, v = normal(2, 2, capacity, 8, seed=1), normal(2, 2, capacity, 8, seed=2)
  last = ends[:, None] + np.arange(rows)
  seen = np.arange(capacity) <= last[..., None]
  got = jax.jit(nn.attend)(q, k, v, seen)
  n = int(last.max()) + 1
  wanted = nn.attend(q, k[:, :, :n], v[:, :, :n], seen[..., :n])
  np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_the_shortest_prefix_is_taken():
  """Its length shows in the attention's own eyes."""
  capacity = 2048
  k = v = jnp.zeros((1, 1, capacity, 1))

  def length(k, v, seen):
    return jnp.int32(k.shape[2])

  measure = jax.jit(functools.partial(nn.over_prefix, length))
  for last, taken in ((0, 512), (511, 512), (512, 1024), (1024, 2048)):
    assert measure(k, v, jnp.arange(capacity) <= last) == taken


@pytest.mark.parametrize('capacity', (1024, 1100, 1280, 4096))
@pytest.mark.parametrize('width', (64, 128, 256))
def test_no_bit_depends_on_the_prefix(capacity, width):
  """A longer neighbour makes the batch read more rows, and changes nothing."""
  rows = 4
  q = normal(2, rows, 2, 4, width)
  k, v = (normal(2, 2, capacity, width, seed=i) for i in (1, 2))
  attend = jax.jit(nn.attend)

  def first(neighbour):
    last = np.array((505, neighbour))[:, None] + np.arange(rows)
    return attend(q, k, v, np.arange(capacity) <= last[..., None])[0]

  alone = first(0)
  for neighbour in (508, 509, 700, capacity - rows):  # 508: 512 rows suffice
    np.testing.assert_array_equal(first(neighbour), alone)


@pytest.mark.parametrize('rows', (1, 32, 33))
def test_norm_before_or_after_the_product(rows):
  x, weight = (
    jnp.asarray(a, jnp.bfloat16) for a in (normal(rows, 64), normal(6, 64))
  )
  scale = jnp.asarray(np.linspace(0.5, 2, 64), jnp.bfloat16)
  got = nn.normed_dense(x, scale, 1e-6, weight)
  x64, w64, s64 = (np.asarray(a, np.float64) for a in (x, weight, scale))
  exact = x64 / np.sqrt((x64**2).mean(-1, keepdims=True)) * s64 @ w64.T
  error = np.linalg.norm(np.asarray(got, np.float64) - exact)
  assert error / np.linalg.norm(exact) < 1e-2
  # The result's dtype does not hang on the number of rows.
  assert nn.normed_dense(x, scale, 1e-6, weight.astype(jnp.float32)).dtype == (
    jnp.float32
  )
