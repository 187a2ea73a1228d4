"""The library's own format, and loading by name."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spinejax.drafters import (
  load_drafter,
  loading,
  random_backbone,
  read_bundle,
  read_checkpoint,
  write_bundle,
)
from spinejax.drafters.base import DraftModel
from spinejax.drafters.codes import Basis, codes_hash, fit_basis, token_codes
from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
  dspine,
)
from spinejax.errors import InputError
from tests.drafters.runs import make_target

CARD = {'target': 'tiny', 'steps': 12, 'tokens_per_round': {'chat': 2.5}}


@dataclasses.dataclass(frozen=True)
class Trained:
  """A drafter of which everything is known that a bundle wants."""

  model: DraftModel
  basis: Basis
  head_hash: str
  codes_hash: str

  def write(self, path, card=CARD, **options):
    write_bundle(
      path,
      self.model,
      self.basis,
      self.head_hash,
      self.codes_hash,
      card,
      **options,
    )
    return path


@pytest.fixture
def trained(spine) -> Trained:
  """The golden drafter, with codes of our own basis."""
  head_VD = spine.target.head_VD
  basis = fit_basis(head_VD, spine.cfg.rank)
  codes = token_codes(head_VD, basis)
  params = dataclasses.replace(spine.params, codes_VR=jnp.float32(codes))
  model = dataclasses.replace(spine.model, params=params)
  return Trained(model, basis, spine.target.head_hash, codes_hash(codes))


def change(path, config=None, tensors=(), drop=()):
  if config:
    hf = json.loads((path / 'config.json').read_text())
    hf['spinejax'] |= config
    (path / 'config.json').write_text(json.dumps(hf))
  weights = load_file(path / 'model.safetensors') | dict(tensors)
  weights = {k: v for k, v in weights.items() if k not in drop}
  save_file(weights, path / 'model.safetensors')


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
    ({}, {}, ['fc.weight.q8'], "tensor 'fc.weight' is missing"),
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
  with pytest.raises(InputError, match='is not finite'):
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
  write_bundle(tmp_path, model, basis, '', '', {}, eight_bit=True)
  size = (tmp_path / 'model.safetensors').stat().st_size
  assert 21e6 < size < 23.5e6


def test_loading_by_name(flash):
  target = flash.target
  plain = load_drafter('plain', target)
  assert (plain.drafter.name, plain.drafter.slots) == ('plain', 0)
  assert load_drafter('plain', target, block=16).drafter.slots == 15
  ngram = load_drafter('ngram', target)
  assert (ngram.drafter.name, ngram.drafter.slots) == ('ngram', 15)
  assert load_drafter('ngram', target, block=5).drafter.slots == 4
  for missing in ('smollm2-135m-dspin', '/nowhere/at-all'):
    with pytest.raises(InputError, match='neither a directory nor one of plai'):
      load_drafter(missing, target)


def test_shipped_drafters_are_found_by_name(
  trained, spine, tmp_path, monkeypatch
):
  monkeypatch.setattr(loading, '_WEIGHTS', tmp_path)
  (tmp_path / 'unfinished').mkdir()
  trained.write(tmp_path / 'tiny-dspine')
  assert loading.shipped() == ('tiny-dspine',)
  model = load_drafter('tiny-dspine', spine.target)
  assert model.drafter.cfg == spine.cfg
  with pytest.raises(InputError, match='one of plain, ngram, tiny-dspine$'):
    load_drafter('unfinished', spine.target)


def test_loaded_weights_take_dtype_and_block(flash):
  model = load_drafter(flash.path, flash.target, jnp.bfloat16, block=3)
  assert {x.dtype.name for x in jax.tree.leaves(model.params)} == {'bfloat16'}
  assert (model.drafter.slots, model.drafter.cfg.block) == (2, 3)
  assert load_drafter(flash.path, flash.target).drafter == flash.model.drafter
  with pytest.raises(InputError, match='block = 1 leaves no slot'):
    load_drafter(flash.path, flash.target, block=1)
