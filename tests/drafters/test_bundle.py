"""The library's own format, and loading by name."""

import dataclasses
import hashlib
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters import (
  load_drafter,
  random_backbone,
  read_bundle,
  read_checkpoint,
  write_bundle,
)
from spinejax.drafters.base import DraftModel
from spinejax.drafters.codes import Basis
from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
  dspine,
)
from spinejax.errors import InputError
from tests.drafters.runs import CARD, load_run, make_target

NAN = np.full(64, np.nan, np.float32)


def change(path, config=(), tensors=(), drop=()):
  """Changes a bundle, its hash included; a field of None is dropped."""
  weights = load_file(path / 'model.safetensors') | dict(tensors)
  weights = {k: v for k, v in weights.items() if k not in drop}
  save_file(weights, path / 'model.safetensors')
  digest = hashlib.sha256((path / 'model.safetensors').read_bytes())
  hf = json.loads((path / 'config.json').read_text())
  own = hf['spinejax'] | {'weights_sha256': digest.hexdigest()} | dict(config)
  hf['spinejax'] = {k: v for k, v in own.items() if v is not None}
  (path / 'config.json').write_text(json.dumps(hf))


def test_bundle_is_read_as_it_was_written(trained, spine, tmp_path):
  trained.write(tmp_path)
  stored = load_file(tmp_path / 'model.safetensors')
  assert 'transfer_codes' not in stored
  assert stored['transfer_axes'].dtype == np.float64
  model = read_bundle(tmp_path, spine.target)
  assert model.drafter == trained.model.drafter
  assert (model.card, model.head_hash) == (CARD, trained.head_hash)
  jax.tree.map(
    np.testing.assert_array_equal,
    model.params,
    jax.device_get(trained.model.params),
  )
  assert model.params.codes_VR.dtype == np.float32


def test_eight_bits_are_within_half_a_step(trained, spine, tmp_path):
  trained.write(tmp_path, eight_bit=True)
  found = read_bundle(tmp_path, spine.target).params
  expected = jax.device_get(trained.model.params)
  np.testing.assert_array_equal(found.codes_VR, expected.codes_VR)
  np.testing.assert_array_equal(
    found.injection.bias_M, expected.injection.bias_M
  )
  # The rows of the fused projection are those of the tensors that are stored.
  for get in (
    lambda p: p.backbone.fc_DP,
    lambda p: p.backbone.layers[1].qkv_GJCD,
    lambda p: p.injection.writes_DM[2],
  ):
    x, y = get(expected), get(found)
    step = np.abs(x).max(-1, keepdims=True) / 127
    assert np.all(np.abs(x - y) <= 0.5001 * step)
  stored = load_file(tmp_path / 'model.safetensors')
  assert stored['fc.weight.q8'].dtype == np.int8
  assert stored['fc.weight.scale'].shape == (64,)


def test_eight_bit_drafter_proposes_much_the_same(trained, spine, tmp_path):
  model = load_drafter(trained.write(tmp_path, eight_bit=True), spine.target)
  rng = np.random.default_rng(0)
  features = rng.normal(size=(32, 9, 192)).astype(np.float32)
  first = []
  for m in (trained.model, model):
    run = dataclasses.replace(spine, model=m)
    proposal = run.propose(run.cache(features), np.arange(32), 9)
    first.append(proposal.tokens_BS[:, 0])
  assert np.mean(first[0] == first[1]) > 0.9


def test_dflash_with_a_learned_mask(flash, tmp_path):
  mask = dataclasses.replace(flash.params, mask_D=flash.params.norm_D + 1)
  model = DraftModel(flash.model.drafter, mask)
  head = flash.target.head_hash
  write_bundle(tmp_path, model, None, head, None, {}, eight_bit=True)
  found = load_drafter(tmp_path, flash.target)
  np.testing.assert_array_equal(found.params.mask_D, mask.mask_D)
  assert found.drafter == flash.model.drafter


@pytest.mark.parametrize(
  'name', ['dflash2-b6', 'domino-b6', 'dspark-rnn', 'dspark-gated']
)
def test_drafters_without_codes(name, tmp_path):
  run = load_run(name)
  head = run.target.head_hash
  write_bundle(tmp_path / 'whole', run.model, None, head, None, CARD)
  found = read_bundle(tmp_path / 'whole', run.target)
  assert (found.drafter, found.card) == (run.model.drafter, CARD)
  jax.tree.map(np.testing.assert_array_equal, found.params, run.params)
  write_bundle(
    tmp_path / 'small', run.model, None, head, None, CARD, eight_bit=True
  )
  found = load_drafter(tmp_path / 'small', run.target)
  assert found.drafter == run.model.drafter
  for x, y in zip(
    jax.tree.leaves(run.params), jax.tree.leaves(found.params), strict=True
  ):
    assert x.shape == y.shape
    assert np.abs(x - y).max() <= np.abs(x).max() / 250


def test_published_checkpoint_is_not_a_bundle(trained, spine, tmp_path):
  with pytest.raises(InputError, match='spinejax = None, expected an object'):
    read_bundle(spine.path, spine.target)
  with pytest.raises(InputError, match='is a bundle of this library'):
    read_checkpoint(trained.write(tmp_path))


@pytest.mark.parametrize('seed', [0, 1])
def test_another_target_is_refused(trained, spine, tmp_path, seed):
  trained.write(tmp_path)
  head = spine.target.head_VD.copy()
  if seed:
    head[0, 0] += 1
  else:
    head = np.random.default_rng(0).normal(size=head.shape)
  other = make_target(np.asarray(spine.embed_VD), head.astype(np.float32))
  with pytest.raises(InputError, match='was trained for another target: its'):
    load_drafter(tmp_path, other)


@pytest.mark.parametrize(
  'config, tensors, drop, message',
  [
    ({'format': 2}, {}, [], 'expected an object with format 1'),
    ({'codes_hash': 'f00'}, {}, [], 'have hash [0-9a-f]{16}, expected f00'),
    (
      {},
      {'transfer_mean': np.ones(64)},
      [],
      'codes rebuilt from the head of tiny have hash',
    ),
    (
      {},
      {'transfer_axes': np.ones((64, 24), np.float32)},
      [],
      "'transfer_axes' is float32 of shape .* expected float64",
    ),
    ({}, {}, ['transfer_eigenvalues'], "'transfer_eigenvalues' is missing"),
    (
      {},
      {},
      ['fc.weight.q8', 'fc.weight.scale'],
      "tensor 'fc.weight' is missing",
    ),
    (
      {},
      {},
      ['fc.weight.q8'],
      "'fc.weight.scale' is there, but 'fc.weight.q8' is missing",
    ),
    (
      {},
      {'fc.weight': np.ones((64, 192), np.float32)},
      [],
      "'fc.weight' and 'fc.weight.q8' are both there, expected one",
    ),
    ({}, {'fc.weight.scale': NAN}, [], "'fc.weight.scale' has values that are"),
    ({}, {'norm.weight': NAN}, [], "'norm.weight' has values that are not fin"),
    ({}, {'transfer_mean': np.float64(NAN)}, [], "'transfer_mean' has values"),
    (
      {},
      {'transfer_eigenvalues': np.zeros(24)},
      [],
      "'transfer_eigenvalues' has 0.0, expected positive values",
    ),
    ({'weights_sha256': None}, {}, [], "spinejax lacks 'weights_sha256'"),
    (
      {'weights_sha256': 5},
      {},
      [],
      'spinejax.weights_sha256 = 5, expected hex',
    ),
    ({'head_hash': 'x'}, {}, [], "spinejax.head_hash = 'x', expected hex dig"),
    ({'head_hash': None}, {}, [], "spinejax lacks 'head_hash'"),
    ({'codes_hash': 5}, {}, [], 'spinejax.codes_hash = 5, expected hex digits'),
    ({'card': []}, {}, [], r'spinejax.card = \[\], expected an object'),
    ({}, {}, ['fc.weight.scale'], "tensor 'fc.weight.scale' is missing"),
    (
      {},
      {'fc.weight.scale': np.ones(3, np.float32)},
      [],
      r"'fc.weight.scale' has shape \(3,\), expected \(64,\)",
    ),
    (
      {},
      {'fc.weight.q8': np.ones((64, 192), np.float32)},
      [],
      "'fc.weight.q8' has dtype float32, expected int8",
    ),
    (
      {},
      {'fc.weight.q8': np.ones((64, 191), np.int8)},
      [],
      r"'fc.weight' has shape \(64, 191\), expected \(64, 192\)",
    ),
    ({}, {'gru.weight.q8': np.ones(2)}, [], "'gru.weight' is not part of this"),
  ],
)
def test_refused_in_one_line(
  trained, spine, tmp_path, config, tensors, drop, message
):
  trained.write(tmp_path, eight_bit=True)
  change(tmp_path, config, tensors, drop)
  with pytest.raises(InputError, match=message) as caught:
    read_bundle(tmp_path, spine.target)
  assert '\n' not in str(caught.value)


def test_truncated_weights_are_refused(trained, spine, tmp_path):
  file = trained.write(tmp_path) / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:-1])
  with pytest.raises(InputError, match='model.safetensors: truncated'):
    load_drafter(tmp_path, spine.target)


def test_nothing_is_written_that_could_not_be_read(trained, flash, tmp_path):
  path = tmp_path / 'new'
  flat = dataclasses.replace(trained, basis=None)
  with pytest.raises(InputError, match='dspine is written with basis and'):
    flat.write(path)
  with pytest.raises(InputError, match='dflash is written without basis'):
    dataclasses.replace(trained, model=flash.model).write(path)
  thin = dataclasses.replace(trained.basis, axes_DR=np.ones((64, 23)))
  with pytest.raises(InputError, match=r'axes of shape \(64, 23\), expected'):
    dataclasses.replace(trained, basis=thin).write(path)
  with pytest.raises(InputError, match='not JSON serializable'):
    trained.write(path, card={'steps': np.float32(1)})
  params = trained.model.params
  nan = dataclasses.replace(
    params, backbone=jax.tree.map(lambda x: x * np.nan, params.backbone)
  )
  model = dataclasses.replace(trained.model, params=nan)
  with pytest.raises(
    InputError, match="'fc.weight' has values that are not fin"
  ):
    dataclasses.replace(trained, model=model).write(path, eight_bit=True)
  assert not path.exists()


def test_drafter_of_smollm2_takes_less_than_24_mb(tmp_path):
  cfg = DSpineConfig(
    vocab=49152,
    width=576,
    layers=5,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ffn=1536,
    block=16,
    mask_id=16,
    taps=(1, 8, 14, 20, 27),
    causal=True,
    rank=384,
    message=256,
  )
  D, R, M = cfg.width, cfg.rank, cfg.message
  shapes = jax.eval_shape(
    lambda key: random_backbone(cfg, key), jax.random.key(0)
  )
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  inner = [np.zeros((M, R), np.float32) for _ in range(3)]
  injection = Injection(
    (np.zeros((R, D), np.float32),) * 5,
    (np.zeros((D, M), np.float32),) * 5,
    *inner,
    np.zeros(M, np.float32),
  )
  params = DSpineParams(zeros, injection, np.zeros((1, R), np.float32))
  basis = Basis(np.zeros((D, R)), np.zeros(R), np.zeros(D))
  model = DraftModel(dspine(cfg), params)
  write_bundle(tmp_path, model, basis, '0', '0', {}, eight_bit=True)
  size = (tmp_path / 'model.safetensors').stat().st_size
  assert 21e6 < size < 23.5e6
