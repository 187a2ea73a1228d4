"""The kernel, interpreted on the CPU, against its specification."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.product import api, gpu, reference
from pallas_kernels.product.config import Config, candidates
from pallas_kernels.product.shapes import SHAPES, TOY


def arrays(shape, dtype=jnp.bfloat16):
  rows, inputs, outputs = shape
  rng = np.random.default_rng(0)
  return (
    rng.normal(size=(rows, inputs)).astype(dtype),
    rng.normal(size=(outputs, inputs)).astype(dtype),
  )


def relative_error(got, x, weight):
  want = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
  error = np.asarray(got, np.float64) - want
  return np.linalg.norm(error) / np.linalg.norm(want)


@pytest.mark.parametrize(
  ('shape', 'config'),
  (
    ('toy_1', Config(64, 64, 2)),
    ('toy_13', Config(32, 128, 3)),
    ('toy_40', Config(16, 256, 6)),
  ),
)
def test_kernel(shape, config, interpreted):
  x, weight = arrays(TOY[shape])
  got = jax.jit(functools.partial(gpu.product, config=config))(x, weight)
  assert got.dtype == jnp.bfloat16
  assert relative_error(got, x, weight) < 4e-3


@pytest.mark.parametrize(
  ('dtype', 'most'), ((jnp.bfloat16, 4e-3), (jnp.float32, 1e-6))
)
def test_reference(dtype, most):
  x, weight = arrays(TOY['toy_13'], dtype)
  got = jax.jit(api.product)(x, weight)
  assert got.dtype == dtype
  assert relative_error(got, x, weight) < most
  np.testing.assert_array_equal(got, reference.product(x, weight))


def test_supported():
  def of(rows, inputs, outputs, dtype=jnp.bfloat16):
    return api.supported(
      jnp.zeros((rows, inputs), dtype), jnp.zeros((outputs, inputs), dtype)
    )

  assert of(64, 72, 128)
  assert not of(65, 72, 128)
  assert not of(1, 68, 128)
  assert not of(1, 72, 96)
  assert not of(1, 72, 128, jnp.float32)


def test_every_candidate_of_a_named_shape_fits():
  for rows, _, outputs in SHAPES.values():
    assert len(candidates(rows, outputs)) > 3


def test_bad_configs_are_refused():
  with pytest.raises(ValueError, match=r'tile = 48, expected one of \(16, 32'):
    Config(tile=48)
  with pytest.raises(ValueError, match='stages = 1, expected an integer >= 2'):
    Config(stages=1)
