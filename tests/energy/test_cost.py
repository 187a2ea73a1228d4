"""The counts against XLA's own, and by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.shape import drafter_config
from spinejax.energy import cost
from spinejax.target import model
from spinejax.target.config import TargetConfig
from spinejax.target.presets import preset
from spinejax.train.objectives import OBJECTIVES

CFG = TargetConfig(
  'llama', vocab=2048, width=512, layers=2, heads=8, kv_heads=4, head_dim=64,
  ffn=1024,
)  # fmt: skip


def compiled(batch, rows, capacity, logits):
  """XLA's own count of an unrolled pass whose cache is full at its end."""

  def run(params, tokens_BQ, cache):
    out = model.forward(CFG, params, tokens_BQ, cache)
    if logits:
      return model.unembed(out.hidden_BQD, params.head_VD), out.cache
    return out.hidden_BQD, out.cache

  arguments = jax.eval_shape(
    lambda: (
      model.random_params(CFG, jax.random.key(0)),
      jnp.zeros((batch, rows), jnp.int32),
      model.init_cache(CFG, batch, capacity),
    )
  )
  return jax.jit(run, donate_argnums=2).lower(*arguments).compile()


def rectangle(count: cost.Cost, rows, capacity, context):
  """The count with masked scores computed, too, as XLA does."""
  seen = rows * context + rows * (rows + 1) / 2
  return count.product_flops + count.attention_flops * rows * capacity / seen


# Rows times batch of 2..8 are padded with zeros on a CPU, and counted.
@pytest.mark.parametrize(
  'batch, rows, context, logits',
  (
    (1, 1, 63, True),  # a step
    (16, 1, 255, True),
    (4, 16, 112, True),  # verification
    (2, 64, 0, False),  # prefill
    (1, 64, 192, False),  # its second half behind a cached prefix
  ),
)
def test_flops_are_the_compilers(batch, rows, context, logits):
  if logits:
    ours = cost.step(CFG, batch, context, rows, 'float32')
  else:
    ours = cost.prefill(CFG, batch, rows, context, 'float32')
  theirs = compiled(batch, rows, context + rows, logits).cost_analysis()
  whole = rectangle(ours, rows, context + rows, context)
  assert theirs['flops'] == pytest.approx(whole, rel=0.02)


def test_bytes_of_a_step_are_the_compilers():
  ours = cost.step(CFG, 1, 255, dtype='float32')
  theirs = compiled(1, 1, 256, True).cost_analysis()
  assert theirs['bytes accessed'] == pytest.approx(ours.bytes, rel=0.02)


def test_by_hand():
  """Llama 3.1 8B: 6.98 G weights in its blocks, 131072 bytes a token."""
  cfg = preset('llama-3.1-8b')
  one = cost.step(cfg, 1, 999)
  blocks, head = 6.979e9, 128256 * 4096
  assert one.product_flops == pytest.approx(2 * (blocks + head), rel=1e-3)
  assert one.weight_bytes == pytest.approx(2 * (blocks + head), rel=1e-3)
  assert one.kv_bytes == 131072 * 1001
  assert one.attention_flops == 4 * 32 * 4096 * 1000
  long = cost.prefill(cfg, 1, 68000)
  assert long.attention_flops == pytest.approx(1.21e15, rel=0.01)
  assert long.product_flops == pytest.approx(0.95e15, rel=0.01)
  # A cache of 63K tokens saves 88.8 % of the operations, not 92.6 %.
  rest = cost.prefill(cfg, 1, 5000, 63000)
  assert 1 - rest.flops / long.flops == pytest.approx(0.888, abs=1e-3)
  # In two parts or one: the same.
  half = cost.prefill(cfg, 1, 34000) + cost.prefill(cfg, 1, 34000, 34000)
  assert half.flops == pytest.approx(long.flops)
  assert cost.step(cfg, 8, 999).flops == pytest.approx(8 * one.flops)
  assert cost.step(cfg, 8, 999).weight_bytes == one.weight_bytes


def test_draft_by_hand():
  shape = dict(layers=3, block=4, mask_id=0, taps=2, rank=16, message=8)
  deep = dataclasses.replace(CFG, layers=8)
  cfg = drafter_config(DSpineConfig, deep, causal=True, **shape)
  objective = OBJECTIVES['dspine']

  def params():
    weights = objective.init(cfg, jax.random.key(0), jnp.zeros((512, 16)))
    return objective.params(weights, jnp.zeros((2048, 16)))

  weights = jax.eval_shape(params)
  found = cost.draft(cfg, weights, CFG, batch=5, context=100, tokens=2)
  layer = 512 * (2 * 8 + 2 * 4) * 64 + 3 * 512 * 1024
  inputs, shared = 2 * 512 * 512, 3 * 8 * 16
  own = 512 * (16 + 8)  # readout and write of a layer
  head = 2048 * 512
  tokens, rows = 5 * 2, 5 * 4
  products = tokens * (inputs + 3 * 2 * 512 * 4 * 64)
  products += rows * 3 * (layer + own + shared) + 5 * 3 * head
  assert found.product_flops == 2 * products
  assert found.attention_flops == 4 * 5 * 3 * 512 * 4 * 104
  vectors = sum(
    x.size for x in jax.tree.leaves(weights.backbone) if len(x.shape) == 1
  )
  read = 3 * (layer + own) + inputs + shared + vectors + head
  # The token codes are looked up, not read.
  assert found.weight_bytes == pytest.approx(2 * read, rel=1e-3)
  assert found.kv_bytes == 2 * 2 * 5 * 3 * 4 * 64 * (102 + 2)
  assert cost.draft(cfg, None, CFG, 5, 100) == cost.Cost()
