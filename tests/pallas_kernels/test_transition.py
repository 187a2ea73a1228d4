"""The kernels, interpreted on the CPU, against their specification."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.transition import api, gpu, reference, tpu
from pallas_kernels.transition.config import Config, candidates
from pallas_kernels.transition.shapes import TOY


def arrays(shape, sampled):
  B, S, N, M = shape
  rng = np.random.default_rng(0)

  def normal(*shape):
    return np.float32(rng.normal(size=shape))

  always = (
    M**-0.5 * normal(B, S, N, M),
    normal(B, S, N, M),
    normal(B, S, N),
    normal(B, S) ** 2,
  )
  if not sampled:
    return always
  return (*always, normal(B, S, N) ** 2 + 0.1, normal(B, S, N))


def in_float64(message, write, straight, scale, factor=None, noise=None):
  """The formula, and a plain walk: indices, scores, gaps to the second."""
  if factor is None:
    factor, noise = np.ones_like(straight), np.zeros_like(straight)
  scores = factor[..., None] * (
    straight[:, :, None] + scale[..., None, None]
    * np.einsum('bsim,bscm->bsic', message, write)
  )  # fmt: skip
  tried = scores + noise[..., None, :]
  index = np.zeros(straight.shape[:2], int)
  gap = np.zeros(straight.shape[:2])
  for b in range(len(index)):
    before = 0
    for j in range(index.shape[1]):
      row = tried[b, j, before]
      before = index[b, j] = np.argmax(row)
      gap[b, j] = np.diff(np.sort(row)[-2:])[0]
  return index, scores, gap


def check(got, args):
  """Tokens as in float64 (no two are within 1e-4 here), scores to 1e-5."""
  index, scores, gap = in_float64(*(np.asarray(x, np.float64) for x in args))
  assert gap.min() > 1e-4
  np.testing.assert_array_equal(got[0], index)
  if len(args) > 4:
    error = np.linalg.norm(got[1] - scores) / np.linalg.norm(scores)
    assert error < 1e-5
  else:
    assert got[1] is None


@pytest.mark.parametrize('sampled', (False, True))
@pytest.mark.parametrize('shape', TOY)
def test_reference(shape, sampled):
  args = arrays(TOY[shape], sampled)
  check(jax.jit(api.transition)(*args), args)


@pytest.mark.parametrize(
  ('shape', 'sampled'), (('toy_1', False), ('toy_2', True))
)
def test_gpu(shape, sampled, interpreted):
  args = arrays(TOY[shape], sampled)
  given = args if sampled else (*args, None, None)
  kernel = functools.partial(gpu.transition, config=Config(64, 2))
  check(jax.jit(kernel)(*given), args)


@pytest.mark.parametrize(
  ('shape', 'sampled'), (('toy_1', True), ('toy_2', False))
)
def test_tpu(shape, sampled, interpreted_tpu):
  args = arrays(TOY[shape], sampled)
  given = args if sampled else (*args, None, None)
  got = jax.jit(tpu.transition)(*given)
  check(got, args)


def test_of_equals_the_first_is_taken(interpreted_tpu):
  args = [np.zeros_like(x) for x in arrays(TOY['toy_1'], False)]
  args[2][:, :, 5:] = 1.0
  on_tpu = jax.jit(tpu.transition)(*args, None, None)[0]
  for index_BS in (jax.jit(reference.transition)(*args)[0], on_tpu):
    np.testing.assert_array_equal(index_BS, 5)


def test_a_kernel_asked_for_runs_or_raises():
  args = arrays((1, 2, 3, 64), False)
  with pytest.raises(
    NotImplementedError, match=r'no kernel takes \[B, S, N, M\] = \[1, 2, 3, 6'
  ):
    api.transition(*args, implementation='kernel')


def test_half_of_what_a_sample_takes_is_refused():
  args = arrays(TOY['toy_1'], True)
  with pytest.raises(ValueError, match='one is None, expected neither'):
    api.transition(*args[:5])


@pytest.mark.parametrize(
  ('shape', 'platforms'),
  (
    ((2, 15, 16, 256), {'cuda', 'tpu'}),
    ((2, 15, 24, 256), {'tpu'}),
    ((2, 15, 4, 96), set()),
  ),
)
def test_supported(shape, platforms):
  message = jax.ShapeDtypeStruct(shape, jnp.float32)
  takes = functools.partial(api.supported, message_BSNM=message)
  assert {p for p in ('cuda', 'tpu') if takes(p)} == platforms


def test_configs():
  assert Config() in candidates()
  with pytest.raises(ValueError, match='need 262144 bytes of shared memory'):
    Config(128, 4)
