"""Losses over the vocabulary in chunks, against all rows at once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from spinejax.drafters.backbone import BackboneConfig
from spinejax.train import vocab
from spinejax.train.vocab import Aims, Trained, vocab_loss
from tests.drafters.runs import static_jit

V, D, E = 37, 12, 5
SHAPE = dict(
  vocab=V, width=D, layers=1, heads=2, kv_heads=1, head_dim=6, ffn=8, block=4,
  mask_id=0, taps=(1,),
)  # fmt: skip


def plainly(cfg, head_VD, trained: Trained, aims: Aims):
  """The value, by its definition."""
  logits = trained.hidden_ND @ head_VD.T * cfg.output_multiplier
  if cfg.softcap is not None:
    logits = cfg.softcap * jnp.tanh(logits / cfg.softcap)
  if trained.up_VE is not None:
    logits += trained.low_NE @ trained.up_VE.T
  log_q = jax.nn.log_softmax(logits)
  ce = -jnp.take_along_axis(log_q, aims.label_N[:, None], axis=-1)[:, 0]
  value = jnp.sum(aims.ce_weight_N * ce)
  if aims.teacher_ND is not None:
    p = jax.nn.softmax(aims.teacher_ND @ head_VD.T)
    l1 = jnp.sum(jnp.abs(jnp.exp(log_q) - p), axis=-1)
    value += jnp.sum(aims.l1_weight_N * l1)
  return value


_plainly = static_jit(jax.value_and_grad(plainly, argnums=2))


@pytest.mark.parametrize(
  'rows, teacher, low, cap',
  (
    # Chunks of 4 rows, the last one padded: every kind of loss.
    *itertools.product((10,), (True, False), (True, False), (None, 3.0)),
    # Less than a chunk, and nothing to pad: the one that has all terms.
    (3, True, True, 3.0),
    (8, True, True, 3.0),
  ),
)
def test_value_and_gradient(monkeypatch, rows, teacher, low, cap):
  monkeypatch.setattr(vocab, '_CHUNK', 4)
  cfg = BackboneConfig(**SHAPE, output_multiplier=1.5, softcap=cap)
  rng = np.random.default_rng(rows)

  def normal(*shape):
    return np.float32(rng.normal(size=shape))

  head_VD = normal(V, D)
  trained = Trained(normal(rows, D))
  if low:
    trained = Trained(trained.hidden_ND, normal(rows, E), normal(V, E))
  aims = Aims(rng.integers(0, V, rows), normal(rows))
  if teacher:
    aims = Aims(aims.label_N, aims.ce_weight_N, normal(rows, D), normal(rows))

  @static_jit
  def chunked(_, head_VD, trained, aims):
    def scaled(trained):
      value, terms = vocab_loss(cfg, 3, head_VD, trained, aims)
      return 2 * value, terms

    return jax.value_and_grad(scaled, has_aux=True)(trained)

  (value, terms), grads = chunked((), head_VD, trained, aims)
  wanted, d_wanted = _plainly(cfg, head_VD, trained, aims)
  np.testing.assert_allclose(value, 2 * wanted, 1e-5)
  jax.tree.map(
    lambda got, want: np.testing.assert_allclose(got, 2 * want, 1e-4, 1e-5),
    grads, d_wanted,
  )  # fmt: skip
  assert terms.ce.shape == (rows,) and terms.candidates.shape == (rows, 3)
  assert (np.diff(terms.scores) <= 0).all()
  if teacher:
    p = scipy.special.softmax(aims.teacher_ND @ head_VD.T, axis=-1)
    np.testing.assert_allclose(
      terms.teacher,
      np.take_along_axis(p, np.asarray(terms.candidates), -1),
      1e-4, 1e-6,
    )  # fmt: skip


def test_no_logits_of_all_rows_are_made():
  """The largest array of forward and backward is a chunk's."""
  rows, vocabulary = 4 * vocab._CHUNK, 4096
  cfg = BackboneConfig(**SHAPE | dict(vocab=vocabulary))
  shapes = (
    jax.ShapeDtypeStruct((vocabulary, D), jnp.float32),
    Trained(jax.ShapeDtypeStruct((rows, D), jnp.float32)),
    Aims(
      jax.ShapeDtypeStruct((rows,), jnp.int32),
      jax.ShapeDtypeStruct((rows,), jnp.float32),
    ),
  )
  grad = jax.grad(
    lambda head, trained, aims: vocab_loss(cfg, 1, head, trained, aims)[0], 1
  )
  memory = jax.jit(grad).lower(*shapes).compile().memory_analysis()
  assert memory.temp_size_in_bytes < rows * vocabulary * 4
