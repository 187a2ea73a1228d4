"""The round and the generation loop compile whole, and donate the caches."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from experiments.platforms import round_program
from pallas_kernels import tuning
from spinejax.compat import topologies
from spinejax.decode import loop
from spinejax.decode import round as decode_round
from spinejax.drafters import dspine
from spinejax.drafters.backbone import tap_ids
from spinejax.target.presets import preset

TARGETS = ('h100', 'v5e')
BATCH, CAPACITY = 8, 1280


@functools.cache
def program():
  """A target of Qwen3-8B's width, cut to four layers, and its DSpine; all
  arguments of the loop as shapes."""
  cfg = dataclasses.replace(preset('qwen3-8b'), layers=4)
  shape = dspine.DSpineConfig(
    vocab=cfg.vocab, width=cfg.width, layers=2, heads=cfg.heads,
    kv_heads=cfg.kv_heads, head_dim=cfg.head_dim, ffn=cfg.ffn, block=16,
    mask_id=16, taps=tap_ids(cfg.layers, 1), rank=1024, message=512,
  )  # fmt: skip
  return cfg, *round_program(cfg, shape, BATCH, CAPACITY)


@pytest.fixture(params=('reference', 'kernels'))
def chosen(request, monkeypatch):
  """By default no kernel was measured to win here; or all were."""
  if request.param == 'kernels':
    monkeypatch.setattr(tuning, 'wins', lambda op, key: True)
  jax.clear_caches()
  yield request.param
  jax.clear_caches()


def size(tree) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def caches_of(state):
  kept = state.target_cache, state.draft_cache
  return [(cache.k, cache.v) for cache in kept]


@pytest.mark.parametrize('target', TARGETS)
def test_the_loop_donates_the_caches(target, chosen):
  cfg, drafter, params, state, sampling = program()
  most = jax.ShapeDtypeStruct((), jnp.int32)
  compiled = topologies.compile_for(
    target, loop.run_rounds, cfg, drafter, params, state, sampling, most
  )
  caches = size(caches_of(state))
  memory, text = compiled.memory_analysis(), compiled.as_text()
  assert memory.alias_size_in_bytes >= caches
  if target == 'h100':
    # Nothing of their size is copied. XLA:TPU, in contrast, lays caches and
    # the weights gate_up_F2D out anew: 2.5 GB with eight layers.
    assert memory.temp_size_in_bytes < caches
    shape = f'[{BATCH},{cfg.kv_heads},{CAPACITY},{cfg.head_dim}]'
    copies = [x for x in text.splitlines() if re.search(r' copy\(', x)]
    assert not any(shape in line.split(' copy(')[0] for line in copies)
  for kernel in ('injection', 'transition'):
    assert (kernel in _calls(text)) == (chosen == 'kernels')


def _calls(text: str) -> str:
  """The lines of a program that call kernels."""
  lines = text.splitlines()
  return '\n'.join(line for line in lines if 'custom_call_target' in line)


@pytest.mark.parametrize('target', TARGETS)
def test_a_round(target):
  cfg, drafter, params, state, sampling = program()
  one = jax.jit(decode_round.step, static_argnums=(0, 1))
  topologies.compile_for(target, one, cfg, drafter, params, state, sampling)
