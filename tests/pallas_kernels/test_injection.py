"""The kernels, interpreted on the CPU, against their specification."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tuning
from pallas_kernels.injection import api, gpu, reference, tpu
from pallas_kernels.injection.config import (
  Config,
  Launch,
  TpuConfig,
  candidates,
  config_for,
  key,
  tpu_config,
)
from pallas_kernels.injection.shapes import SHAPES, TOY

SMALL = Config(Launch(32, 64, 2), Launch(16, 64, 3), Launch(64, 128, 2))
BFLOAT16, FLOAT32 = (jnp.bfloat16, 1e-2), (jnp.float32, 1e-5)


def arrays(shape, dtype=jnp.bfloat16):
  B, K, D, R, M = shape
  rng = np.random.default_rng(0)

  def normal(*shape, scale=1.0):
    return (scale * rng.normal(size=shape)).astype(dtype)

  gates = [normal(M, R, scale=R**-0.5) for _ in range(3)]
  return (
    normal(B, K, D),
    normal(B, R, scale=3.0),  # not of the length of a feature
    normal(R, D, scale=D**-0.5),
    *gates,
    normal(M),
    normal(D, M, scale=M**-0.5),
  )


def in_float64(h, anchor, readout, receiver, predecessor, message, bias, write):
  """The formulas once more, in NumPy."""
  f = h @ readout.T
  f *= len(readout) ** 0.5 / np.linalg.norm(f, axis=-1, keepdims=True)
  u = np.concatenate([anchor[:, None], f[:, 1:-1]], axis=1)
  gate = 1 / (1 + np.exp(-(f[:, 1:] @ receiver.T + u @ predecessor.T + bias)))
  scale = np.linalg.norm(h, axis=-1, keepdims=True) / h.shape[-1] ** 0.5
  out = h.copy()
  out[:, 1:] += scale[:, 1:] * ((gate * (u @ message.T)) @ write.T)
  return out


def run(kernel, args, config):
  """Traced anew: tests change what it reads."""
  return jax.jit(functools.partial(kernel, config=config))(*args)


def check(got, args, most):
  """What was added has that error, and slot 0 is as it was."""
  h, *rest = (np.asarray(x, np.float64) for x in args)
  want = in_float64(h, *rest)
  assert got.dtype == args[0].dtype
  got = np.asarray(got, np.float64)
  np.testing.assert_array_equal(got[:, 0], h[:, 0])
  error = np.linalg.norm(got - want) / np.linalg.norm(want - h)
  assert error < most


@pytest.mark.parametrize(('dtype', 'most'), (BFLOAT16, FLOAT32))
@pytest.mark.parametrize('shape', TOY)
def test_reference(shape, dtype, most):
  args = arrays(TOY[shape], dtype)
  check(jax.jit(reference.injection)(*args), args, most)


@pytest.mark.parametrize('shape', TOY)
def test_gpu(shape, interpreted):
  args = arrays(TOY[shape])
  check(run(gpu.injection, args, SMALL), args, 1e-2)


@pytest.mark.parametrize(('dtype', 'most'), (BFLOAT16, FLOAT32))
@pytest.mark.parametrize(
  ('shape', 'config'),
  (
    (TOY['toy_odd'], tpu_config(*TOY['toy_odd'][1:])),
    # Several steps in each phase.
    ((2, 4, 256, 256, 256), TpuConfig(128, 128, 128)),
  ),
)
def test_tpu(shape, config, dtype, most, interpreted_tpu):
  args = arrays(shape, dtype)
  got = run(tpu.injection, args, config)
  check(got, args, most)


def test_more_requests_than_vector_memory_holds(monkeypatch, interpreted_tpu):
  args = arrays(TOY['toy_odd'])
  monkeypatch.setattr(tpu, '_RESIDENT', 2 * 5 * 192 * 2)
  got = run(tpu.injection, args, tpu_config(*TOY['toy_odd'][1:]))
  check(got, args, 1e-2)


def test_zero_states_stay_zero(interpreted):
  """No feature has a direction there, and no norm may divide by zero."""
  args = arrays((1, 2, 64, 64, 64))
  args = (0 * args[0], *args[1:])
  np.testing.assert_array_equal(run(gpu.injection, args, SMALL), args[0])
  np.testing.assert_array_equal(jax.jit(reference.injection)(*args), args[0])


@pytest.mark.parametrize(
  ('rows', 'slots', 'chunk'),
  ((1, 1, 8), (60, 15, 64), (65, 15, None), (128, 16, 64), (96, 12, 48)),
)
def test_chunks_are_whole_blocks(rows, slots, chunk):
  assert gpu.chunk_of(rows, slots) == chunk


@pytest.mark.parametrize(
  ('shape', 'dtype', 'platforms'),
  (
    ((2, 16, 64, 64, 64), jnp.bfloat16, {'cuda', 'tpu'}),
    ((2, 16, 64, 64, 64), jnp.float32, {'tpu'}),
    ((2, 16, 96, 64, 64), jnp.bfloat16, {'tpu'}),
    ((9, 11, 64, 64, 64), jnp.bfloat16, {'tpu'}),  # 88 rows of whole blocks
    ((2, 16, 64, 64, 64), jnp.float16, set()),
  ),
)
def test_supported(shape, dtype, platforms):
  h, _, readout, _, _, message, *_ = jax.eval_shape(
    lambda: arrays(shape, dtype)
  )
  takes = functools.partial(
    api.supported, h_BKD=h, readout_RD=readout, message_MR=message
  )
  assert {p for p in ('cuda', 'tpu') if takes(p)} == platforms


def test_a_kernel_asked_for_runs_or_raises():
  args = arrays(TOY['toy_one'], jnp.float16)
  with pytest.raises(
    NotImplementedError,
    match=r'injection: no kernel takes float16 \[1, 2, 128\] with rank 64 and',
  ):
    api.injection(*args, implementation='kernel')
  with pytest.raises(NotImplementedError, match='platform'):  # it is a CPU
    jax.jit(functools.partial(api.injection, implementation='kernel'))(
      *arrays(TOY['toy_one'])
    )


@pytest.mark.parametrize(('xla_us', 'wins'), ((9.0, True), (4.0, False)))
def test_the_default_is_what_was_measured_to_win(xla_us, wins, monkeypatch):
  shape = TOY['toy_one']
  entry = dict(time_us=5.0, xla_us=xla_us, config={})
  name = key(shape[0] * shape[1], *shape[2:])
  monkeypatch.setattr(tuning, 'table', lambda op, kind: {name: entry})
  asked = []
  monkeypatch.setattr(api, 'supported', lambda *args: asked.append(args))
  got = api.injection(*arrays(shape))
  np.testing.assert_array_equal(got, reference.injection(*arrays(shape)))
  assert bool(asked) == wins


def test_configs_of_named_shapes():
  for B, K, *widths in SHAPES.values():
    chosen = config_for(B * K, *widths)
    assert chosen in candidates(B * K, *widths)
    for width, launch in zip(
      (widths[1], widths[2], widths[0]),
      (chosen.readout, chosen.gate, chosen.write),
      strict=True,
    ):
      assert width % launch.tile == 0


def test_bad_configs_are_refused():
  with pytest.raises(ValueError, match='gate needs 499712 bytes of shared'):
    Config(Launch(16, 128, 6), Launch(32, 256, 4), Launch(64, 128, 4))
