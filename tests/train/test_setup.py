"""What a run starts from: its shape, its cost, and what is refused."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from spinejax.drafters.backbone import tap_ids
from spinejax.drafters.shape import drafter_config
from spinejax.target.config import TargetConfig
from spinejax.train import setup
from spinejax.train.flops import flops_per_step
from spinejax.train.objectives import OBJECTIVES
from spinejax.train.step import Task, TrainConfig, init_state
from tests.train import tiny


def test_flops_by_hand():
  """Of a target of three layers, and a drafter of one."""
  of = TargetConfig(
    'llama', vocab=50, width=8, layers=3, heads=4, kv_heads=2, head_dim=6,
    ffn=10, max_position=99,
  )  # fmt: skip
  B, T, A, K = 2, 20, 5, 4
  shape = dict(layers=1, block=K, mask_id=0, taps=1)
  layer = 8 * (4 + 2 * 2) * 6 + 4 * 6 * 8 + 3 * 8 * 10
  read = 2 * B * T * 3 * layer

  def found(method, loss=(), **own):
    cfg = drafter_config(OBJECTIVES[method].config, of, **shape | own)
    options = OBJECTIVES[method].options(**dict(loss))
    task = Task.of(
      OBJECTIVES[method], options, cfg, of,
      TrainConfig(steps=1, anchors=A),
    )  # fmt: skip
    axes_DR = jnp.zeros((8, own.get('rank', 1)))
    state = jax.eval_shape(lambda: init_state(task, axes_DR))
    return flops_per_step(task, state, B, T)

  # Features of one layer; keys and values of the tokens in the draft layer.
  context = B * T * (8 * 8 + 2 * 8 * 2 * 6)
  blocks, slots = B * A * K * layer, B * A * 3
  head = 2 * slots * 50 * 8
  flash = read + 6 * (context + blocks)
  assert found('dflash') == flash + 2 * head
  assert found('dflash', {'ce_end': 0.5}) == flash + 3 * head
  first = dict(anchor_first=True)
  assert found('dflash', **first) == flash + 2 * B * A * K * 50 * 8 * 2
  # Readout, write, and three matrices.
  more = B * A * K * (2 * 8 + 4 * 8 + 3 * 4 * 2)
  spine = found('dspine', rank=2, message=4)
  assert spine == flash + 6 * more + 3 * head
  # The GRU's two matrices and `down`, and the correction of the logits.
  more = B * A * K * (3 * 7 * (8 + 7) + 5 * (8 + 7)) + slots * 5 * 50
  assert found('domino', gru_dim=7, emb_dim=5) == flash + 6 * more + 2 * head
  # Of one table rows are taken.
  slots = B * A * K
  spark = found('dspark', markov_rank=5, confidence=False)
  assert spark == flash + 6 * slots * 5 * 50 + 3 * 2 * slots * 50 * 8
  assert not OBJECTIVES['domino'].options().needs_teacher


def test_the_drafter_has_the_proportions_of_its_target():
  cfg = tiny.begin().task.cfg
  for field in ('vocab', 'width', 'heads', 'kv_heads', 'head_dim', 'ffn'):
    assert getattr(cfg, field) == getattr(tiny.CFG, field)
  assert cfg.taps == tap_ids(3, 1) and tap_ids(6, 3) == (1, 2, 3)
  assert cfg.causal and cfg.slots == 4


@pytest.mark.parametrize(
  'method, change, message',
  (
    ('dspine', dict(layers=0), 'layers = 0, expected at least 1'),
    ('dspine', dict(rank=0), 'rank = 0, expected an integer >= 1'),
    ('dspine', dict(message=-1), 'message = -1, expected an integer >= 1'),
    ('dspine', dict(taps=0), 'taps = 0, expected at least 1'),
    (
      'dspine',
      dict(taps=9),
      'target of 3 layers has too few for 9 taps, ...',
    ),
    ('dspine', dict(block=1), 'block = 1 leaves no slot to propose'),
    (
      'dspine',
      dict(mask_id=64),
      'mask_id = 64 is outside the vocabulary of 64',
    ),
    ('dspine', dict(rank=33), 'rank = 33 exceeds min(width, vocab - 1) = 32'),
    ('dflash', dict(rank=3), "BackboneConfig has no field 'rank'"),
    ('dspine', dict(gru_dim=3), "DSpineConfig has no field 'gru_dim'"),
    (
      'dflash',
      dict(vocab=63),
      'drafter dflash was made for a target of vocab 63; tiny has 64',
    ),
  ),
)
def test_drafters_that_cannot_be(method, change, message, refused):
  with refused(message):
    tiny.begin(method, drafter=change)


def test_another_seed_gives_other_weights():
  one, same, other = (
    tiny.begin('dflash', TrainConfig(steps=1, seed=seed)).state.weights.fc_DP
    for seed in (0, 0, 1)
  )
  assert (one == same).all() and (one != other).all()


def test_methods_and_losses_that_cannot_be(refused):
  with refused(
    "method = 'eagle', expected one of dflash, dflash2, domino, dspark, dspine"
  ):
    setup.make_task(tiny.target(), 'eagle', tiny.TRAIN, drafter={}, loss={})
  for method, loss, message in (
    ('dflash', {'alignment_weight': 1}, 'dflash has no field ...'),
    ('dspine', {'gama': 1}, "dspine has no field 'gama'"),
  ):
    with refused(f'loss: {message}'):
      tiny.begin(method, loss=loss)
  for method, loss, message in (
    ('dflash', {'ce_end': 1.5}, 'ce_end = 1.5, expected 0..1'),
    ('dflash2', {'selector': -1}, 'selector = -1, expected at least 0'),
    ('dspark', {'confidence': -1}, 'confidence = -1, expected at least 0'),
    ('domino', {'base_end': 2}, 'base_end = 2, expected 0..1'),
    ('dspine', {'replacement_end': 0.1}, 'replacement_hold = ...'),
    ('dspine', {'alignment_warmup_steps': 0}, 'alignment_warmup_steps = ...'),
  ):  # fmt: skip
    with refused(message):
      tiny.begin(method, loss=loss)


@pytest.mark.parametrize(
  'batch, lengths, train, message',
  (
    (
      8,
      (300,),
      {},
      'length = 300 exceeds the context of 256 that tiny was trained for',
    ),
    (
      8,
      (5, 40),
      {},
      'anchors = 6, expected at most the 5 tokens of a sequence',
    ),
    (
      8,
      (40,),
      {'accumulate': 3},
      'batch = 8 is not a multiple of accumulate = 3',
    ),
  ),
)
def test_batches_that_do_not_fit(batch, lengths, train, message, refused):
  train = dataclasses.replace(tiny.TRAIN, **train)
  with refused(message):
    check(train, batch, lengths)
  check(tiny.TRAIN, 8, (tiny.LENGTH,))


def check(train, batch, lengths, answer_tokens=9):
  data = types.SimpleNamespace(
    folder='data', manifest={'answer_tokens': answer_tokens}
  )
  setup.check_batch(tiny.target(), train, data, batch=batch, lengths=lengths)


def test_data_without_answers(refused):
  with refused('data: has no answer tokens to learn from'):
    check(tiny.TRAIN, 8, (tiny.LENGTH,), answer_tokens=0)


@pytest.mark.parametrize(
  'method, loss, message',
  (
    ('dflash', {'gamma': 0}, 'gamma = 0, expected above 0, or None'),
    ('dflash', {'gamma': -1.0}, 'gamma = -1.0, expected above 0, or None'),
    ('domino', {'gamma': '7'}, "gamma = '7', expected a finite number"),
    ('dflash2', {'selector': float('nan')}, 'selector = nan, expected a ...'),
    ('dspark', {'confidence': -1}, 'confidence = -1, expected at least 0'),
    ('dspine', {'alignment_weight': -1}, 'alignment_weight = -1, expected ...'),
    ('dspine', {'cumulative': 'no'}, "cumulative = 'no', expected True or ..."),
    ('dspine', {'alignment': 'x'}, "alignment = 'x', expected cosine or ..."),
  ),
)
def test_losses_that_cannot_be(method, loss, message, refused):
  with refused(message):
    OBJECTIVES[method].options(**loss)


@pytest.mark.parametrize(
  'fields, message',
  (
    ({'steps': 2.5}, 'steps = 2.5, expected an integer >= 1'),
    ({'steps': True}, 'steps = True, expected an integer >= 1'),
    (
      {'learning_rate': '1'},
      "learning_rate = '1', expected a finite number >= 0",
    ),
    ({'weight_decay': -1.0}, 'weight_decay = -1.0, expected a finite ...'),
    ({'weight_decay': float('inf')}, 'weight_decay = inf, expected ...'),
    ({'seed': 2**70}, 'seed = 1180591620717411303424, expected 0..4294967295'),
  ),
)
def test_trainings_that_cannot_be(fields, message, refused):
  with refused(message):
    TrainConfig(**{'steps': 1} | fields)
