"""The kernel, interpreted on the CPU, against its specification."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.block_attention import api, gpu, reference, tpu
from pallas_kernels.block_attention.config import Plan, TpuConfig

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
  rows: int
  heads: int  # of a group
  head_dim: int
  lengths: tuple[int, ...]
  groups: int = 2
  capacity: int = 192
  normed: bool = False
  causal: bool = True
  append: bool = True
  plan: Plan = Plan(crowded=False, splits=8)


CASES = (
  # One row, an empty context, and one that ends a tile.
  Case(1, 4, 128, (0, 100, 64), normed=True),
  Case(16, 4, 128, (130, 1), normed=True),
  # Rows that fill no swizzle row; heads that leave the tile part empty.
  Case(9, 3, 64, (65, 127), capacity=256),
  # A draft block: all of it is seen, nothing is appended.
  Case(8, 3, 64, (192, 7), causal=False, append=False),
  Case(4, 2, 64, (70,), capacity=128, plan=Plan(False, 1)),
  # More groups than multiprocessors: contexts of one part, of several, and
  # more tiles than are in flight.
  Case(9, 3, 64, (250, 64, 0), capacity=256, plan=Plan(True, 1)),
  Case(16, 4, 128, (0, 64, 170), normed=True, plan=Plan(True, 2, long=64)),
  # Padding rows are no keys, also where no causal mask hides them.
  Case(12, 2, 64, (10,), capacity=64, causal=False, append=False),
)


def arrays(case: Case, poison: float = 0.0):
  rng, batch, dtype = np.random.default_rng(1), len(case.lengths), jnp.bfloat16
  length_B = np.array(case.lengths, np.int32)
  shape = (batch, case.groups, case.capacity, case.head_dim)
  live = (np.arange(case.capacity) < length_B[:, None])[:, None, :, None]
  k, v = (
    np.where(live, rng.normal(size=shape), poison).astype(dtype)
    for _ in range(2)
  )
  qkv = rng.normal(
    size=(batch, case.rows, case.groups, case.heads + 2, case.head_dim)
  ).astype(dtype)
  angle = rng.uniform(0.0, 6.0, (batch, case.rows, 1, case.head_dim // 2))
  norms = tuple(
    rng.uniform(0.5, 2.0, case.head_dim).astype(dtype) for _ in range(2)
  )
  return (
    qkv, k, v, length_B, tuple(np.float32(f(angle)) for f in (np.cos, np.sin)),
    norms if case.normed else None,
  )  # fmt: skip


def compute(attend, *given):
  """It compiled as one program, not operation by operation; in NumPy."""
  return jax.tree.map(np.array, jax.jit(attend)(*given))


def specified(case: Case):
  return compute(
    functools.partial(
      reference.block_attention, eps=EPS, causal=case.causal,
      append=case.append,
    ),
    *arrays(case),
  )  # fmt: skip


def run(case: Case, given, monkeypatch):
  monkeypatch.setattr(Plan, 'of', lambda groups, capacity: case.plan)
  qkv, k, v, length_B, rope, norms = given
  batch = len(case.lengths)
  return compute(
    functools.partial(
      gpu.block_attention, eps=EPS, causal=case.causal, append=case.append
    ),
    qkv.reshape(batch, case.rows, -1), k, v, length_B,
    *(x.reshape(batch, case.rows, -1) for x in rope), norms,
  )  # fmt: skip


@pytest.mark.parametrize('case', CASES, ids=str)
def test_kernel(case, interpreted, monkeypatch):
  """Unused rows of the cache are NaN: none is read into the result."""
  want = specified(case)
  got = run(case, arrays(case, poison=np.nan), monkeypatch)
  out, expected = (np.asarray(x[0], np.float32) for x in (got, want))
  error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
  assert error < 1e-2
  for new, old in zip(got[1:], want[1:], strict=True):
    for b, length in enumerate(case.lengths):
      rows = length + case.rows * case.append
      np.testing.assert_allclose(
        np.asarray(new[b, :, :rows], np.float32),
        np.asarray(old[b, :, :rows], np.float32),
        rtol=1e-2,
      )


def in_float64(case, qkv, k, v, length_B, rope, norms):
  """The attention once more, in NumPy, request by request and head by head."""
  qkv, k, v, cos, sin = (
    np.array(x, np.float64) for x in (qkv, k, v, *rope)
  )  # fmt: skip
  q, new_k, new_v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]

  def rotated(x, scale, cos, sin):
    if scale is not None:
      root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)
      x = x / root * np.asarray(scale, np.float64)
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate(
      [left * cos - right * sin, right * cos + left * sin], axis=-1
    )

  q_scale, k_scale = norms or (None, None)
  q = rotated(q, q_scale, cos[:, :, None], sin[:, :, None])
  new_k = rotated(new_k, k_scale, cos, sin)
  out = np.zeros(q.shape)
  for b, row, g, u in np.ndindex(q.shape[:4]):
    own = row + 1 if case.causal else case.rows
    length = int(length_B[b])
    keys = np.concatenate([k[b, g, :length], new_k[b, :own, g]])
    values = np.concatenate([v[b, g, :length], new_v[b, :own, g]])
    weights = np.exp(keys @ q[b, row, g, u] * case.head_dim**-0.5)
    out[b, row, g, u] = weights @ values / weights.sum()
  for b, length in enumerate(case.lengths):
    behind = slice(length, length + case.rows)
    if case.append:
      k[b, :, behind] = new_k[b].swapaxes(0, 1)[:, : case.capacity - length]
      v[b, :, behind] = new_v[b].swapaxes(0, 1)[:, : case.capacity - length]
  return out.reshape(*out.shape[:2], -1), k, v


@pytest.mark.parametrize('dtype', (jnp.bfloat16, jnp.float32))
@pytest.mark.parametrize(
  'case',
  (
    Case(9, 3, 64, (65, 247), capacity=256, normed=True),
    # The whole capacity in one step; an empty context; nothing appended.
    Case(12, 2, 64, (10, 0), capacity=72, causal=False, append=False),
  ),
  ids=str,
)
def test_tpu(case, dtype, interpreted_tpu):
  """As above, and in float32 against float64."""
  given = arrays(case, poison=np.nan)
  want = specified(case)
  if dtype == jnp.float32:
    given, clean = (
      jax.tree.map(
        lambda x: x.astype(dtype) if x.dtype == jnp.bfloat16 else x, arrays_
      )
      for arrays_ in (given, arrays(case))
    )
    want = in_float64(case, *clean)
  attend = functools.partial(
    tpu.block_attention, eps=EPS, causal=case.causal, append=case.append,
    config=TpuConfig(128),
  )  # fmt: skip
  got = compute(attend, *given)
  out, expected = (np.asarray(x[0], np.float64) for x in (got, want))
  error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
  assert error < (1e-2 if dtype == jnp.bfloat16 else 1e-5)
  if case.append:
    for new, old in zip(got[1:], want[1:], strict=True):
      for b, length in enumerate(case.lengths):
        np.testing.assert_allclose(
          np.asarray(new[b, :, : length + case.rows], np.float64),
          np.asarray(old[b, :, : length + case.rows], np.float64),
          rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5, atol=1e-6,
        )  # fmt: skip


def test_rows_past_the_capacity_are_dropped(interpreted, monkeypatch):
  case = Case(8, 2, 64, (124, 3), capacity=128)
  got = run(case, arrays(case), monkeypatch)
  want = specified(case)
  for new, old in zip(got[1:], want[1:], strict=True):
    np.testing.assert_allclose(
      np.asarray(new, np.float32), np.asarray(old, np.float32), rtol=1e-2
    )


@pytest.mark.parametrize(
  ('dtype', 'rows', 'heads', 'head_dim', 'takes'),
  (
    (jnp.bfloat16, 16, 4, 128, True),
    (jnp.bfloat16, 1, 8, 64, True),
    (jnp.bfloat16, 17, 4, 128, False),  # 4 x 24 rows do not fit a tile
    (jnp.bfloat16, 1, 9, 64, False),
    (jnp.bfloat16, 1, 1, 96, False),
    (jnp.float32, 1, 4, 128, False),
  ),
)
def test_supported(dtype, rows, heads, head_dim, takes):
  qkv = jnp.zeros((1, rows, 1, heads + 2, head_dim), dtype)
  assert api.supported(qkv, jnp.zeros((1, 1, 8, head_dim), dtype)) == takes


def test_a_capacity_of_broken_swizzle_rows_is_not_supported():
  qkv = jnp.zeros((1, 1, 1, 4, 64), jnp.bfloat16)
  for capacity, takes in ((100, False), (104, True)):
    cache = jnp.zeros((1, 1, capacity, 64), jnp.bfloat16)
    assert api.supported(qkv, cache) == takes


def test_splits_fill_the_processors():
  plans = [Plan.of(n, 8192) for n in (1, 8, 24, 66, 132)]
  assert plans == [Plan(False, n) for n in (8, 8, 5, 2, 1)]


def test_only_long_contexts_of_many_groups_are_split():
  plans = [Plan.of(500, n) for n in (512, 2048, 4096, 8192, 2**20)]
  assert plans == [Plan(True, n) for n in (1, 1, 2, 4, 8)]


def test_elsewhere_the_caller_decides():
  """On a CPU, also for shapes that the kernel takes."""
  case = CASES[0]
  *given, norms = arrays(case)
  # As of a float32 drafter for a bfloat16 target.
  given.append(tuple(np.float32(x) for x in norms))
  size = case.groups * case.heads * case.head_dim
  mine = jnp.full((len(case.lengths), case.rows, size), 7, jnp.bfloat16)
  attend = functools.partial(
    api.block_attention, lambda *args: (mine, *args[1:3]), *given,
    eps=EPS, causal=True, append=True,
  )  # fmt: skip
  np.testing.assert_array_equal(jax.jit(attend)()[0], mine)
