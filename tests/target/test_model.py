"""The forward pass against transformers, and the cache's contract.

Most tests run the same few shapes, so that each compiles once a family.
"""

import dataclasses
import functools
import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.sharding import shard
from spinejax.target import (
  KVCache,
  forward,
  init_cache,
  random_params,
  unembed,
)
from spinejax.target.hf_dir import read_hf
from spinejax.target.model import read

FAMILIES = ('llama', 'qwen2', 'qwen3')
T = 48  # tokens of the fixtures, and the capacity of every cache
Q = 5
TAPS = (-1, 0, 1, 2)


@functools.partial(jax.jit, static_argnums=0)
def run(cfg, params, tokens_BQ, cache):
  """Logits, tapped features and the cache of one pass."""
  out = forward(cfg, params, tokens_BQ, cache, TAPS)
  logits = unembed(out.hidden_BQD, params.head_VD)
  return logits, out.features_BQP, out.cache


@dataclasses.dataclass
class Case:
  """A model of the fixtures and what transformers computes from it."""

  cfg: object
  params: object
  expected: dict[str, np.ndarray]

  def __post_init__(self):
    self.tokens = self.expected['input_ids']
    self.run = functools.partial(run, self.cfg, self.params)
    self.empty = init_cache(self.cfg, 2, T)

  def prefilled(self, *length: int) -> KVCache:
    """The cache after so many tokens; rows behind them were never written."""
    _, _, cache = self.run(self.tokens, self.empty)
    length_B = jnp.asarray(length, jnp.int32)
    return refilled(dataclasses.replace(cache, length_B=length_B), 0, 0)


def refilled(cache: KVCache, key: float, value: float) -> KVCache:
  """The cache with other contents in all rows that are not valid."""
  rows = jnp.arange(cache.capacity)[:, None]
  valid = rows < cache.length_B[:, None, None, None]
  return dataclasses.replace(
    cache,
    k=tuple(jnp.where(valid, x, key) for x in cache.k),
    v=tuple(jnp.where(valid, x, value) for x in cache.v),
  )


def read_case(folder) -> Case:
  cfg, params = read_hf(folder)
  expected = load_file(folder / 'expected.safetensors')
  return Case(cfg, shard(params, None, jnp.float32), expected)


@pytest.fixture(scope='module', params=FAMILIES)
def case(request, golden):
  return read_case(golden / request.param)


@pytest.fixture(scope='module')
def llama(golden):
  return read_case(golden / 'llama')


def test_logits_and_layer_outputs_equal_transformers(case):
  logits, features, cache = case.run(case.tokens, case.empty)
  np.testing.assert_allclose(logits, case.expected['logits'], atol=1e-4)
  embedding, first, second, last = np.split(np.asarray(features), 4, axis=-1)
  np.testing.assert_array_equal(embedding, case.params.embed_VD[case.tokens])
  for layer, output in ((0, first), (1, second)):
    wanted = case.expected[f'layer_output.{layer}']
    np.testing.assert_allclose(output, wanted, atol=1e-4)
  # The last layer's output is tapped before the final norm.
  scale = np.sqrt((last**2).mean(-1, keepdims=True) + case.cfg.norm_eps)
  logits = last / scale * case.params.norm_D @ case.params.head_VD.T
  np.testing.assert_allclose(logits, case.expected['logits'], atol=1e-4)
  np.testing.assert_array_equal(cache.length_B, [0, 0])  # the caller's to move


def test_both_spellings_of_a_config_give_the_same_model(case, golden, tmp_path):
  for file in (golden / case.cfg.family).iterdir():
    shutil.copy(file, tmp_path)
  v4 = json.loads((tmp_path / 'config_v4.json').read_text())
  assert 'rope_theta' in v4 and 'rope_parameters' not in v4
  shutil.move(tmp_path / 'config_v4.json', tmp_path / 'config.json')
  cfg, params = read_hf(tmp_path)
  assert cfg == case.cfg and hash(cfg) == hash(case.cfg)
  chex.assert_trees_all_equal(shard(params, None, jnp.float32), case.params)


@pytest.mark.parametrize('chunk', [1, 5, 16])
def test_chunked_prefill_equals_one_pass(llama, chunk):
  # Ragged: the second request ends early and reads padding from then on.
  lengths = np.array([48, 37])
  whole, features, _ = llama.run(llama.tokens, llama.empty)
  cache = llama.empty
  for start in range(0, 48, chunk):
    count = np.clip(lengths - start, 0, chunk)
    rows = np.full((2, chunk), 7, np.int32)
    for b, n in enumerate(count):
      rows[b, :n] = llama.tokens[b, start : start + n]
    logits, tapped, cache = llama.run(rows, cache)
    cache = cache.advance(jnp.asarray(count, jnp.int32))
    for b, n in enumerate(count):
      at = np.s_[b, start : start + n]
      # Products of other row counts differ in their last bits.
      for got, wanted in ((logits, whole), (tapped, features)):
        np.testing.assert_allclose(got[b, :n], wanted[at], atol=1e-5, rtol=1e-5)
  np.testing.assert_array_equal(cache.length_B, lengths)


def test_step_by_step_equals_one_pass(case):
  whole, _, _ = case.run(case.tokens, case.empty)
  cache = case.empty
  for i in range(T):
    logits, _, cache = case.run(case.tokens[:, i : i + 1], cache)
    cache = cache.advance(jnp.ones(2, jnp.int32))
    np.testing.assert_allclose(logits[:, 0], whole[:, i], atol=1e-5)


def test_rejected_rows_leave_no_trace(case):
  clean = case.prefilled(20, 11)
  _, _, dirty = case.run(case.tokens[:, -Q:], clean)
  assert not np.array_equal(dirty.k[0], clean.k[0])
  block = case.tokens[:, 20 : 20 + Q]
  with_trace, without = case.run(block, dirty), case.run(block, clean)
  chex.assert_trees_all_equal(with_trace[:2], without[:2])
  # One request keeps two rows of the block, the other none.
  kept = with_trace[2].advance(jnp.asarray([2, 0], jnp.int32))
  np.testing.assert_array_equal(kept.length_B, [22, 11])
  block = case.tokens[:, 22 : 22 + Q]
  with_trace = case.run(block, kept)
  without = case.run(block, refilled(kept, 0, 0))
  chex.assert_trees_all_equal(with_trace[:2], without[:2])
  whole, _, _ = case.run(case.tokens, case.empty)
  wanted = whole[0, 22 : 22 + Q]
  np.testing.assert_allclose(with_trace[0][0], wanted, atol=1e-5)


def test_garbage_beyond_the_length_is_never_seen(case):
  clean = case.prefilled(20, 11)
  dirty = refilled(clean, -1e30, 1e30)
  block = case.tokens[:, 20 : 20 + Q]
  one, other = case.run(block, clean), case.run(block, dirty)
  chex.assert_trees_all_equal(one[:2], other[:2])


def test_rows_past_the_capacity_are_dropped(case):
  cache = case.prefilled(T - 2, 20)
  rows = np.stack([case.tokens[0, -Q:], case.tokens[1, 20 : 20 + Q]])
  rows[0, :2] = case.tokens[0, -2:]
  logits, _, after = case.run(rows, cache)
  for old, new in zip(cache.k + cache.v, after.k + after.v, strict=True):
    np.testing.assert_array_equal(new[0, :, : T - 2], old[0, :, : T - 2])
    np.testing.assert_array_equal(new[1, :, :20], old[1, :, :20])
    np.testing.assert_array_equal(new[1, :, 20 + Q :], 0)
  # The two rows that fit, and the other request, are as they should be.
  whole, _, _ = case.run(case.tokens, case.empty)
  np.testing.assert_allclose(logits[0, :2], whole[0, -2:], atol=1e-5)
  np.testing.assert_allclose(logits[1], whole[1, 20 : 20 + Q], atol=1e-5)


def test_a_full_request_writes_nothing(case):
  cache = case.prefilled(T, T)
  _, _, after = case.run(case.tokens[:, :Q], cache)
  chex.assert_trees_all_equal(after, cache)


def test_negative_ids_are_harmless_to_the_other_rows(case):
  wanted, _, _ = case.run(case.tokens, case.empty)
  tokens = case.tokens.copy()
  tokens[0, 6:] = -1  # padding on the right
  tokens[1] = -1000  # a request that is not there
  logits, _, cache = case.run(tokens, case.empty)
  np.testing.assert_array_equal(logits[0, :6], wanted[0, :6])
  assert np.isfinite(logits).all()
  assert all(np.isfinite(x).all() for x in cache.k + cache.v)


def test_a_request_does_not_depend_on_its_neighbour(case):
  cache = case.prefilled(20, 11)
  block = case.tokens[:, 20 : 20 + Q]
  logits, features, after = case.run(block, cache)
  strange = jnp.asarray([20, 33], jnp.int32)
  strange = refilled(dataclasses.replace(cache, length_B=strange), 3, -2)
  other = np.stack([block[0], block[1, ::-1]])
  logits2, features2, after2 = case.run(other, strange)
  assert not np.array_equal(logits[1], logits2[1])
  np.testing.assert_array_equal(logits[0], logits2[0])
  np.testing.assert_array_equal(features[0], features2[0])
  for x, y in zip(after.k + after.v, after2.k + after2.v, strict=True):
    np.testing.assert_array_equal(x[0, :, : 20 + Q], y[0, :, : 20 + Q])


def test_bfloat16_is_near_float32(case):
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), case.params)
  cache = init_cache(case.cfg, 2, T, jnp.bfloat16)
  logits, features, cache = run(case.cfg, half, case.tokens, cache)
  assert logits.dtype == jnp.float32
  assert features.dtype == cache.k[0].dtype == jnp.bfloat16
  error = np.abs(logits - case.expected['logits'])
  assert error.mean() < 0.02 and error.max() < 0.3


def test_taps_choose_what_is_returned(llama):
  def features(*taps):
    args = llama.params, llama.tokens, llama.empty
    return jax.eval_shape(
      lambda *args: forward(llama.cfg, *args, taps).features_BQP, *args
    )

  assert features().shape == (2, T, 0)
  assert features(1).shape == (2, T, llama.cfg.width)
  assert features(-1, 0).shape == (2, T, 2 * llama.cfg.width)


def test_same_shapes_trace_once(llama):
  cfg = dataclasses.replace(llama.cfg, layers=1)
  params = dataclasses.replace(llama.params, layers=llama.params.layers[:1])
  cache = init_cache(cfg, 2, T)
  chex.clear_trace_counter()
  step = jax.jit(chex.assert_max_traces(forward, n=1), static_argnums=(0, 4))
  for start in range(0, 12, 4):
    # A config that was rebuilt compares equal, and must not trace again.
    scaling = dataclasses.replace(cfg.rope_scaling)
    cfg = dataclasses.replace(cfg, rope_scaling=scaling)
    tokens = llama.tokens[:, start : start + 4]
    cache = step(cfg, params, tokens, cache, (0,)).cache
    cache = cache.advance(jnp.full(2, 4, jnp.int32))
  np.testing.assert_array_equal(cache.length_B, [12, 12])


def test_every_array_of_a_cache_has_a_buffer_of_its_own(llama):
  # Two arrays that share one cannot both be donated.
  leaves = jax.tree.leaves(init_cache(llama.cfg, 2, T))
  assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@pytest.mark.parametrize('taps', (TAPS, (1,), ()))
def test_whole_sequences_are_read_as_by_forward(case, taps):
  """The training pass, which keeps no cache."""
  tokens_BT = np.where(case.tokens < 0, 0, case.tokens)[:, : T - 7]
  hidden_BTD, features_BTP = jax.jit(read, static_argnums=(0, 3))(
    case.cfg, case.params, tokens_BT, taps
  )
  out = jax.jit(forward, static_argnums=(0, 4))(
    case.cfg, case.params, tokens_BT, case.empty, taps
  )
  assert features_BTP.shape == (2, T - 7, len(taps) * case.cfg.width)
  np.testing.assert_allclose(hidden_BTD, out.hidden_BQD, 1e-5, 1e-5)
  np.testing.assert_allclose(features_BTP, out.features_BQP, 1e-5, 1e-5)


def test_random_params_share_the_table_of_a_tied_head(llama):
  cfg = dataclasses.replace(llama.cfg, layers=1, tied=True)
  params = random_params(cfg, jax.random.key(0), jnp.bfloat16)
  assert params.head_VD is params.embed_VD
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('bfloat16')}
