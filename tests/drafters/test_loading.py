"""Loading a drafter by name or path."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters import load_drafter, loading
from spinejax.errors import InputError
from tests.drafters.runs import load_run


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


@pytest.mark.parametrize(
  'name', ['dflash2-b6', 'domino-b6', 'dspark-gated', 'dspark-rnn']
)
def test_bfloat16_proposes_much_the_same(name):
  run, B = load_run(name), 32
  half = load_drafter(run.path, run.target, jnp.bfloat16)
  rng = np.random.default_rng(0)
  features = rng.normal(size=(B, 9, run.params.backbone.fc_DP.shape[1]))
  first = []
  for model in (run.model, half):
    this = dataclasses.replace(run, model=model)
    cache = this.cache(features.astype(np.float32))
    proposal = this.propose(cache, np.arange(B), 9)
    first.append(proposal.tokens_BS[:, :2])
    assert proposal.confidence_BS.dtype == jnp.float32
  assert np.mean(first[0] == first[1]) > 0.8


def test_block_counts_the_rows_that_are_verified():
  for name, own in (('dflash2-b6', 6), ('domino-b6', 7), ('dspark-rnn', 6)):
    run = load_run(name)
    assert run.model.drafter.slots == own - 1
    for rows in (2, 4, own):
      drafter = load_drafter(run.path, run.target, block=rows).drafter
      assert drafter.slots == rows - 1
      assert drafter.cfg.block == rows - drafter.cfg.anchor_first
    assert drafter == run.model.drafter
    with pytest.warns(UserWarning, match=f'was trained for {own} rows'):
      load_drafter(run.path, run.target, block=own + 1)


@pytest.mark.parametrize(
  'source, options, message',
  [
    ('', {}, "source = '', expected the name of a drafter or a directory"),
    (None, {}, 'source = None, expected the name of a drafter or a dir...'),
    (5, {}, 'source = 5, expected the name of a drafter or a directory'),
    ('x' * 999, {}, "drafter 'x...x' is neither a directory nor one of ..."),
    ('plain', {'block': 2.5}, 'block = 2.5, expected an integer >= 2'),
    ('plain', {'block': 'a'}, "block = 'a', expected an integer >= 2"),
    ('plain', {'block': True}, 'block = True, expected an integer >= 2'),
    ('ngram', {'block': 1}, 'block = 1 leaves no slot to propose'),
    (
      'plain',
      {'dtype': jnp.int8},
      'dtype = int8, expected one of float32, bfloat16, float16',
    ),
    ('plain', {'dtype': 'x'}, "dtype = 'x', expected one of float32, ..."),
    ('plain', {'dtype': np.float64}, 'dtype = float64, expected one of ...'),
    (
      'plain',
      {'factored': True},
      'drafter plain has no transition table to factor',
    ),
  ],
)
def test_what_cannot_be_loaded(flash, refused, source, options, message):
  with refused(message):
    load_drafter(source, flash.target, **options)


def test_factored_form_is_of_dspine_and_proposes_the_same(
  flash, spine, refused
):
  with refused('drafter dflash has no transition table to factor'):
    load_drafter(flash.path, flash.target, factored=True)
  model = load_drafter(spine.path, spine.target, factored=True)
  assert model.params.tables is not None
  features = np.random.default_rng(0).normal(size=(16, 9, 192))
  proposed = []
  for m in (spine.model, model):
    run = dataclasses.replace(spine, model=m)
    cache = run.cache(features.astype(np.float32))
    proposed.append(run.propose(cache, np.arange(16), 9).tokens_BS)
  np.testing.assert_array_equal(*proposed)


def test_shipped_weights_are_those_of_their_config(smollm2):
  for name in loading.shipped():
    path = pathlib.Path(loading.__file__).parent / 'weights' / name
    assert load_drafter(path, smollm2).card['target']
