"""Published checkpoints: what is read and what is written."""

import dataclasses
import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from spinejax.drafters import load_drafter, read_checkpoint, write_checkpoint
from spinejax.drafters.base import DraftModel
from spinejax.drafters.layouts.dspark import COPIES
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.target.config import RopeScaling
from tests.drafters.runs import GOLDEN, load_run, rounds_of

NAMES = (
  'dflash-b6',
  'dflash-sliding',
  'dflash2-b6',
  'domino-b6',
  'dspark-gated',
  'dspark-rnn',
  'dspark-specforge-layout',
  'dspark-vanilla',
  'dspine-b6',
  'dspine-separate-codes',
)


def assert_same(params, expected):
  assert jax.tree.structure(params) == jax.tree.structure(expected)
  for x, y in zip(
    jax.tree.leaves(params), jax.tree.leaves(expected), strict=True
  ):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


def test_configs_are_read_from_every_published_place(copied):
  cfg = read_checkpoint(GOLDEN / 'dflash-b6').drafter.cfg
  assert (cfg.block, cfg.mask_id, cfg.taps) == (6, 96, (1, 5, 9))
  assert (cfg.rope_base, cfg.norm_eps, cfg.causal) == (1e6, 1e-6, None)
  cfg = read_checkpoint(GOLDEN / 'dspine-separate-codes').drafter.cfg
  assert (cfg.rank, cfg.message, cfg.candidates) == (16, 10, 16)
  assert (cfg.taps, cfg.causal, cfg.norm_eps) == ((2, 7), True, 1e-3)
  path = copied(
    'dflash-sliding',
    {
      'dflash_config.block_size': 4,  # wins over the top level's 6
      'dflash_config.mask_token_id': None,
      'mask_token_id': 90,
      'dflash_config.final_logit_softcapping': 30,
      'output_multiplier': 0.5,
      'dflash_config.input_embedding_scale': 5.5,
      'rope_theta': None,
      'rope_parameters': {'rope_theta': 5e5, 'rope_type': 'default'},
      'is_causal': False,
    },
  )
  cfg = read_checkpoint(path).drafter.cfg
  assert (cfg.block, cfg.mask_id, cfg.softcap) == (4, 90, 30.0)
  assert (cfg.output_multiplier, cfg.embedding_scale) == (0.5, 5.5)
  assert (cfg.rope_base, cfg.causal) == (5e5, False)
  assert cfg.windows == (None, 5, 5)


def test_release_without_dspine_config_is_block_16_and_full(copied):
  path = copied(
    'dspine-separate-codes',
    {
      'config.block_size': 8,
      'config.dflash_config.block_size': 8,
      'config.layer_types': ['sliding_attention'] * 2,
      'config.sliding_window': 4,
    },
  )
  cfg = read_checkpoint(path).drafter.cfg
  assert (cfg.block, cfg.windows) == (16, None)


def test_taps_that_are_not_stated_are_the_published_default(copied):
  unstated = {'dflash_config.target_layer_ids': None, 'num_target_layers': 16}
  path = copied('dflash-b6', unstated)
  assert read_checkpoint(path).drafter.cfg.taps == (1, 7, 13)
  path = copied('dflash-sliding', unstated | {'num_target_layers': None})
  target = load_run('dflash-sliding').target
  assert read_checkpoint(path, target).drafter.cfg.taps == (1, 5, 9)
  with pytest.raises(InputError, match="'num_target_layers' is missing"):
    read_checkpoint(path)


@pytest.mark.parametrize('name', NAMES)
def test_written_checkpoint_is_the_one_that_was_read(name, tmp_path):
  model = read_checkpoint(GOLDEN / name)
  write_checkpoint(tmp_path / 'new', model)
  again = read_checkpoint(tmp_path / 'new')
  assert again.drafter == model.drafter
  assert_same(again.params, model.params)
  published = load_file(GOLDEN / name / 'model.safetensors')
  if name == 'dspine-separate-codes':
    codes = load_file(GOLDEN / name / 'transfer.safetensors')['codes']
    published |= {'transfer_codes': codes, 'transfer_ready': np.array(True)}
  for copy in COPIES:  # DeepSpec's, which are not kept
    published.pop(copy, None)
  written = load_file(tmp_path / 'new' / 'model.safetensors')
  assert written.keys() == published.keys()
  for key, x in published.items():
    assert written[key].dtype == x.dtype
    assert written[key].shape == x.shape
    np.testing.assert_array_equal(written[key], x)
  hf = json.loads((tmp_path / 'new' / 'config.json').read_text())
  published = json.loads((GOLDEN / name / 'config.json').read_text())
  published = published.get('config', published)
  if published['architectures'] == ['Qwen3DSparkModel']:
    # Becomes SpecForge's layout of the same settings.
    own = hf['dflash_config'].keys() - {'projector_type'}
    own = {key: published.pop(key) for key in own}
    published['dflash_config'] = own | {'projector_type': 'dspark'}
    published['architectures'] = ['DSparkDraftModel']
  for key in hf.keys() - {'dflash_config', 'dspine_config'}:
    assert hf[key] == published[key]
  assert hf['dflash_config'].items() <= published['dflash_config'].items()
  assert (
    hf.get('dspine_config', {}).items()
    <= published.get('dspine_config', hf.get('dspine_config', {})).items()
  )


def test_unusual_settings_and_bfloat16_survive_a_round_trip(spine, tmp_path):
  cfg = dataclasses.replace(
    spine.cfg,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    windows=(None, 7, None),
    embedding_scale=3.0,
    output_multiplier=0.25,
    softcap=30.0,
  )
  params = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), spine.params)
  drafter = dataclasses.replace(spine.model.drafter, cfg=cfg)
  model = DraftModel(drafter, params)
  write_checkpoint(tmp_path, model, spine.target)
  again = read_checkpoint(tmp_path, spine.target)
  assert again.drafter == model.drafter
  assert_same(again.params, jax.device_get(params))
  hf = json.loads((tmp_path / 'config.json').read_text())
  assert (hf['dtype'], hf['num_target_layers']) == ('bfloat16', 12)
  assert hf['max_position_embeddings'] == 512


def test_failed_write_leaves_the_old_checkpoint(spine, tmp_path, monkeypatch):
  write_checkpoint(tmp_path, spine.model)
  (tmp_path / 'notes.txt').write_text('kept')
  before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
  other = jax.tree.map(lambda x: x + 1, spine.params)
  other = dataclasses.replace(spine.model, params=other)

  def fail(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'replace', fail)
  with pytest.raises(InputError, match='No space left on device'):
    write_checkpoint(tmp_path, other)
  assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
  monkeypatch.undo()
  write_checkpoint(tmp_path, other)
  assert_same(read_checkpoint(tmp_path).params, jax.device_get(other.params))
  assert {f.name for f in tmp_path.iterdir()} == before.keys()


def test_weights_take_their_place_before_the_config(
  spine, tmp_path, monkeypatch
):
  order, replace = [], os.replace
  monkeypatch.setattr(
    os, 'replace', lambda a, b: (order.append(b.name), replace(a, b))
  )
  write_checkpoint(tmp_path / 'deep' / 'new', spine.model)
  assert order == ['model.safetensors', 'config.json']


def test_what_the_published_layout_cannot_say_is_not_written(flash, tmp_path):
  def changed(**change):
    cfg = dataclasses.replace(flash.cfg, **change)
    return DraftModel(
      dataclasses.replace(flash.model.drafter, cfg=cfg), flash.params
    )

  mask = dataclasses.replace(flash.params, mask_D=flash.params.norm_D)
  cases = [
    (changed(windows=(None, 4, 5)), 'one width for all sliding'),
    (changed(qk_norm=False), 'q and k norms'),
    (DraftModel(flash.model.drafter, mask), 'learned mask embedding'),
    (plain_model(), "drafter 'plain' has no weights"),
  ]
  for model, message in cases:
    with pytest.raises(InputError, match=message):
      write_checkpoint(tmp_path / 'new', model)
  assert not (tmp_path / 'new').exists()
  (tmp_path / 'file').touch()
  with pytest.raises(InputError, match='file: not a directory; choose'):
    write_checkpoint(tmp_path / 'file', flash.model)


def test_deepspec_without_markov_head_is_a_dflash_of_its_layout(
  copied, tmp_path
):
  run = load_run('dspark-vanilla')
  tensors = load_file(run.path / 'model.safetensors')
  heads = [k for k in tensors if k.startswith(('markov', 'confidence'))]
  none = {'markov_rank': 0, 'enable_confidence_head': False}
  path = copied('dspark-vanilla', none | {'markov_head_type': None}, (), heads)
  model = read_checkpoint(path, run.target)
  drafter = model.drafter
  assert (drafter.name, drafter.cfg.anchor_first) == ('dflash', True)
  assert drafter.slots == drafter.cfg.block == 5
  # The anchor's slot proposes: the best tokens of the base logits.
  flash = dataclasses.replace(run, model=load_drafter(path, run.target))
  for want, cache, start in rounds_of(run):
    proposal = flash.propose(cache, want['anchor_id'], start)
    np.testing.assert_array_equal(
      proposal.tokens_BS, np.argmax(want['base_logits'], axis=-1)
    )
  write_checkpoint(tmp_path / 'new', model)
  again = read_checkpoint(tmp_path / 'new', run.target)
  assert again.drafter == drafter
  assert_same(again.params, model.params)
  hf = json.loads((tmp_path / 'new' / 'config.json').read_text())
  assert hf['architectures'] == ['DFlashDraftModel']
  assert hf['dflash_config']['sample_from_anchor'] is True


def test_slot_layout_of_a_dflash_is_read_from_both_its_names(copied):
  assert not read_checkpoint(GOLDEN / 'dflash-b6').drafter.cfg.anchor_first
  path = copied('dflash-b6', {'dflash_config.query_zero_predicts_next': True})
  assert read_checkpoint(path).drafter.slots == 6
  path = copied('dflash2-b6', {'sample_from_anchor': True})
  assert read_checkpoint(path).drafter.slots == 6
  path = copied('dspine-b6', {'sample_from_anchor': True})
  with pytest.raises(InputError, match='anchor_first = True: DSpine injects'):
    read_checkpoint(path)
  path = copied('domino-b6', {'dflash_config.shift_label': False})
  assert read_checkpoint(path).drafter.slots == 5


def test_heads_that_engines_serve_as_a_dflash(copied):
  path = copied('domino-b6', {'architectures': ['DFlashDraftModel']})
  assert read_checkpoint(path).drafter == load_run('domino-b6').model.drafter
  path = copied('dflash-b6', {'dflash_config.projector_type': 'eagle'})
  with pytest.raises(
    InputError, match="projector_type = 'eagle', expected one of dflash, "
  ):
    read_checkpoint(path)


@pytest.mark.parametrize(
  'name, heads',
  [
    ('domino-b6', ('prefix_gru', 'embed_proj')),
    ('dspark-specforge-layout', ('markov_head', 'confidence_head')),
  ],
)
def test_early_exports_keep_heads_under_another_name(copied, name, heads):
  expected = read_checkpoint(GOLDEN / name)
  old = {
    k: v
    for k, v in load_file(GOLDEN / name / 'model.safetensors').items()
    if k.startswith(heads)
  }
  path = copied(name, {}, {f'logit_head.{k}': v for k, v in old.items()}, old)
  found = read_checkpoint(path)
  assert found.drafter == expected.drafter
  assert_same(found.params, expected.params)
  path = copied(name, {}, {f'logit_head.{k}': v for k, v in old.items()})
  with pytest.raises(InputError, match='both with and without the prefix'):
    read_checkpoint(path)


@pytest.mark.parametrize('name', ['embed_tokens.weight', 'lm_head.weight'])
def test_copies_of_tables_must_be_those_of_the_target(copied, name):
  run = load_run('dspark-vanilla')
  x = load_file(run.path / 'model.safetensors')[name]
  half = {name: x.astype(ml_dtypes.bfloat16)}
  path = copied('dspark-vanilla', {}, half)
  assert read_checkpoint(path, run.target).drafter == run.model.drafter
  x[3, 4] += 0.1
  path = copied('dspark-vanilla', {}, {name: x})
  read_checkpoint(path)
  with pytest.raises(
    InputError,
    match=f"tensor '{name}' is not that of tiny: the drafter was trained for",
  ):
    read_checkpoint(path, run.target)
