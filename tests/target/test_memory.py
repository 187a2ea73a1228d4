"""The memory table against arrays that are really there."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from spinejax.drafters import backbone
from spinejax.drafters.base import DraftModel
from spinejax.drafters.dflash2 import DFlash2Config, random_dflash2
from spinejax.drafters.domino import DominoConfig, random_domino
from spinejax.drafters.dspark import DSparkConfig, random_dspark
from spinejax.drafters.dspine import DSpineConfig, dspine
from spinejax.drafters.loading import ngram_model, plain_model
from spinejax.drafters.shape import drafter_config
from spinejax.target import memory
from spinejax.target.config import TargetConfig
from spinejax.target.memory import (
  PREFILL_CHUNK,
  available_bytes,
  check_memory,
  kv_bytes,
  memory_table,
)
from spinejax.target.model import init_cache, random_params
from spinejax.train.objectives.dspine import DSPINE

# Qwen3-8B by eight: the same proportions, and a head of its own.
CFG = TargetConfig(
  'qwen3', vocab=18992, width=512, layers=36, heads=32, kv_heads=8,
  head_dim=16, ffn=1536, qk_norm=True, max_position=40960,
)  # fmt: skip
DRAFT = drafter_config(
  DSpineConfig,
  CFG,
  layers=5,
  block=16,
  mask_id=0,
  taps=5,
  rank=128,
  message=64,
)
BATCH, CAPACITY = 3, 256


def bytes_of(make) -> int:
  """Bytes of the arrays that a function would return; none is allocated."""
  leaves = jax.tree.leaves(jax.eval_shape(make))
  return sum(x.size * x.dtype.itemsize for x in leaves)


def spine_params():
  key = jax.random.key(0)
  axes_DR = jnp.zeros((DRAFT.width, DRAFT.rank))
  codes_VR = jnp.zeros((DRAFT.vocab, DRAFT.rank))
  return DSPINE.params(DSPINE.init(DRAFT, key, axes_DR), codes_VR)


def bfloat16(make):
  return lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), make())


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_target(dtype):
  table = memory_table(CFG, None, BATCH, CAPACITY, dtype)
  weights = bytes_of(lambda: random_params(CFG, jax.random.key(0), dtype))
  assert table['target weights'] == pytest.approx(weights, rel=0.01)
  cache = init_cache(CFG, BATCH, CAPACITY, dtype)
  rows = sum(x.nbytes for x in (*cache.k, *cache.v))
  assert table['target KV cache'] == rows
  assert table['logits'] == BATCH * CFG.vocab * 4
  # Those of a layer for a chunk of prompt.
  scores = BATCH * CFG.heads * PREFILL_CHUNK * CAPACITY * 4
  assert table['attention scores'] == scores
  assert table['total'] == sum(v for k, v in table.items() if k != 'total')


def test_a_tied_head_counts_once():
  tied = dataclasses.replace(CFG, tied=True)
  params = jax.eval_shape(lambda: random_params(tied, jax.random.key(0)))
  weights = bytes_of(lambda: params) - params.embed_VD.size * 4
  table = memory_table(tied, None, 1, 128, 'float32')
  assert table['target weights'] == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_drafter(dtype):
  cast = bfloat16 if dtype == 'bfloat16' else lambda make: make
  codes = bytes_of(cast(lambda: spine_params().codes_VR))
  everything = bytes_of(cast(spine_params))
  table = memory_table(CFG, DRAFT, BATCH, CAPACITY, dtype)
  assert table['token codes'] == codes
  assert table['draft weights'] == pytest.approx(everything - codes, rel=0.01)
  cache = backbone.draft_cache(DRAFT, BATCH, CAPACITY, jnp.dtype(dtype))
  rows = sum(x.nbytes for x in (*cache.k, *cache.v))
  assert table['draft KV cache'] == rows
  assert table['logits'] == BATCH * DRAFT.block * CFG.vocab * 4
  assert table['total'] == sum(v for k, v in table.items() if k != 'total')


def test_drafter_without_injection():
  shape = {f.name for f in dataclasses.fields(backbone.BackboneConfig)}
  flash = backbone.BackboneConfig(**{k: getattr(DRAFT, k) for k in shape})
  table = memory_table(CFG, flash, BATCH, CAPACITY, 'float32')
  weights = bytes_of(lambda: backbone.random_backbone(flash, jax.random.key(0)))
  assert table['draft weights'] == pytest.approx(weights, rel=0.01)
  assert 'token codes' not in table


@pytest.mark.parametrize(
  'kind, make, extra',
  (
    (DFlash2Config, random_dflash2, {'selector_rank': 64}),
    (DominoConfig, random_domino, {'gru_dim': 128}),
    (DSparkConfig, random_dspark, {'markov_rank': 64}),
    (DSparkConfig, random_dspark, {'markov_head': 'gated'}),
    (DSparkConfig, random_dspark, {'markov_head': 'rnn', 'confidence': False}),
  ),
)
def test_drafters_with_other_heads(kind, make, extra):
  shape = {f.name for f in dataclasses.fields(backbone.BackboneConfig)}
  base = {k: getattr(DRAFT, k) for k in shape} | {'anchor_first': True}
  cfg = kind(**base | extra)
  weights = bytes_of(lambda: make(cfg, jax.random.key(0)))
  plain = bytes_of(lambda: backbone.random_backbone(cfg, jax.random.key(0)))
  assert cfg.head_weights * 4 == weights - plain > plain / 10
  table = memory_table(CFG, cfg, BATCH, CAPACITY, 'float32')
  assert table['draft weights'] == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize('draft', (plain_model(), ngram_model(slots=7)))
def test_drafters_without_weights(draft):
  table = memory_table(CFG, draft.drafter.cfg, BATCH, CAPACITY, 'float32')
  assert not [k for k in table if 'draft' in k or 'codes' in k]
  assert table['logits'] == BATCH * (draft.drafter.slots + 1) * CFG.vocab * 4


def test_available_bytes_is_positive():
  assert available_bytes() > 2**20


def fake_target(mesh=None):
  """What `check_memory` reads of a target."""
  params = types.SimpleNamespace(embed_VD=jnp.zeros((1, 1), jnp.bfloat16))
  return types.SimpleNamespace(cfg=CFG, params=params, mesh=mesh)


def test_check_memory_says_how_much_is_needed(monkeypatch, refused):
  draft, batch, capacity = DraftModel(dspine(DRAFT)), 64, 40960
  rows = kv_bytes(CFG, batch, capacity, jnp.bfloat16)
  rows += kv_bytes(DRAFT, batch, capacity, jnp.bfloat16)
  lasting = rows + batch * DRAFT.block * CFG.vocab * 4
  # Of a chunk of 128 prompt tokens, in one layer.
  passing = batch * CFG.heads * 128 * capacity * 4

  def check(have):
    monkeypatch.setattr(memory, 'available_bytes', lambda: have)
    check_memory(fake_target(), draft, batch, capacity)

  def message(need, what, have):
    return (
      f'batch 64 at capacity 40960 needs {need / 2**30:.1f} GiB for {what}; '
      f'{have / 2**30:.1f} GiB are free'
    )

  check(lasting + passing)
  check(None)  # it cannot be told
  have = lasting + passing - 1
  what = 'caches, logits and attention scores'
  with refused(message(lasting + passing, what, have)):
    check(have)
  with refused(message(lasting, 'caches and logits', lasting - 1)):
    check(lasting - 1)


def test_check_memory_counts_what_one_device_of_a_mesh_holds(
  monkeypatch, refused
):
  draft, rows = ngram_model(slots=7), kv_bytes(CFG, 8, 4096, jnp.bfloat16)
  each = (rows + 8 * 8 * CFG.vocab * 4) // 4
  mesh = types.SimpleNamespace(size=4)
  monkeypatch.setattr(memory, 'available_bytes', lambda: each - 1)
  with refused(
    f'batch 8 at capacity 4096 needs {each / 2**30:.1f} GiB on each of 4 '
    f'devices for caches and logits; {each / 2**30:.1f} GiB are free'
  ):
    check_memory(fake_target(mesh), draft, 8, 4096)
