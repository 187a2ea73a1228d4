"""Anchors, labels and weights of training blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.train.batch import (
  Batch,
  decay,
  gather_rows,
  label_positions,
  sample_anchors,
  supervised,
)

T, COUNT = 30, 6
# Supervised: all; a few in a row; a hole; only the last; none.
MASK_BT = np.zeros((5, T), np.float32)
MASK_BT[0] = 1
MASK_BT[1, 4:9] = 1
MASK_BT[2, [3, 4, 5, 7, 9, 10]] = 1
MASK_BT[3, -1] = 1
# An anchor needs a supervised successor.
LEGAL = [set(range(T - 1)), {4, 5, 6, 7}, {3, 4, 9}, set(), set()]

sample = jax.jit(sample_anchors, static_argnums=2)


def anchors(seed: int) -> tuple[np.ndarray, np.ndarray]:
  return jax.device_get(sample(jax.random.key(seed), MASK_BT, COUNT))


def batch(mask_BT, anchors_BA, keep_BA=None) -> Batch:
  """A batch of which only what places labels is there."""
  mask_BT, anchors_BA = jnp.asarray(mask_BT), jnp.asarray(anchors_BA)
  keep_BA = jnp.ones(anchors_BA.shape, bool) if keep_BA is None else keep_BA
  empty = jnp.zeros((*mask_BT.shape, 0))
  return Batch(
    jnp.zeros(mask_BT.shape, jnp.int32),
    mask_BT,
    empty,
    empty,
    anchors_BA,
    jnp.asarray(keep_BA),
  )


def test_anchors_are_distinct_ascending_and_legal():
  for seed in range(5):
    for at_A, keep_A, legal in zip(*anchors(seed), LEGAL, strict=True):
      # As many as there are; the rest is padding at 0, behind them.
      real = min(COUNT, len(legal))
      assert keep_A.tolist() == [True] * real + [False] * (COUNT - real)
      assert (np.diff(at_A[:real]) > 0).all()
      assert set(at_A[:real]) <= legal
      assert (at_A[real:] == 0).all()


def test_anchors_depend_on_the_key_only():
  first, again, other = anchors(0), anchors(0), anchors(1)
  np.testing.assert_array_equal(first[0], again[0])
  assert (first[0][0] != other[0][0]).any()


def test_every_legal_anchor_is_drawn():
  drawn = np.concatenate([anchors(seed)[0][0] for seed in range(60)])
  counts = np.bincount(drawn, minlength=T)
  assert counts[-1] == 0
  # 360 draws over 29 places: 12.4 each; uniform, so none far from it.
  assert counts[:-1].min() >= 3 and counts[:-1].max() <= 26


def test_label_positions_and_clamping():
  of = batch(np.ones((2, 8)), [[0, 5], [2, 7]])
  at_BAS = label_positions(of, 3)
  np.testing.assert_array_equal(
    at_BAS, [[[1, 2, 3], [6, 7, 8]], [[3, 4, 5], [8, 9, 10]]]
  )
  rows_BT = jnp.arange(16).reshape(2, 8)
  np.testing.assert_array_equal(
    gather_rows(rows_BT, at_BAS),
    [[[1, 2, 3], [6, 7, 7]], [[11, 12, 13], [15, 15, 15]]],
  )
  # Rows of vectors keep their last axis.
  found = gather_rows(jnp.stack([rows_BT, -rows_BT], -1), at_BAS)
  assert found.shape == (2, 2, 3, 2)
  assert found[1, 0, 2].tolist() == [13, -13]


@pytest.mark.parametrize(
  'cumulative, hole', [(True, [1, 0, 0, 0]), (False, [1, 0, 1, 0])]
)
def test_masks(cumulative, hole):
  mask_BT = np.ones((1, 10))
  mask_BT[0, [3, 5]] = 0
  # Over the hole; past the end, where the clamped label is supervised; at
  # padding.
  of = batch(mask_BT, [[1, 7, 1]], [[True, True, False]])
  found = supervised(of, 4, cumulative=cumulative)
  np.testing.assert_array_equal(found, [[hole, [1, 1, 0, 0], [0, 0, 0, 0]]])
  assert found.dtype == jnp.float32


def test_decay():
  np.testing.assert_allclose(
    decay(4, 7.0), np.exp(-np.array([0, 1, 2, 3]) / 7), 1e-6
  )
  np.testing.assert_array_equal(decay(3, None), np.ones(3))
