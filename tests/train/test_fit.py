"""A whole training run on a tiny target, and its features."""

import dataclasses
import itertools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.drafters.backbone import tap_ids
from spinejax.target.model import forward, init_cache
from spinejax.train import features, fit
from spinejax.train.features import compute_corpus
from spinejax.train.fit import batches, drafter_config
from tests.compilations import COMPILATIONS
from tests.train import tiny

pytestmark = pytest.mark.usefixtures('quick_compilation')


def run(train=tiny.TRAIN, **settings):
  """A fit, the scalars of each step, and compilations before each."""
  log, compiled = [], []

  def keep(step, scalars):
    assert step == len(log) + 1
    compiled.append(len(COMPILATIONS))
    log.append(scalars)

  settings = dict(batch=tiny.COUNT, log=keep, log_every=1) | settings
  done = fit.fit(tiny.target(), tiny.DRAFT, tiny.data(), train, **settings)
  return done, log, compiled


@pytest.fixture(scope='module')
def trained(quick_compilation):
  del quick_compilation
  return run()


def tokens_per_round(completions):
  emitted = sum(len(c.tokens) for c in completions)
  return emitted / sum(c.rounds for c in completions)


def test_overfits_one_batch(trained):
  done, log, _ = trained
  assert len(log) == done.steps == tiny.TRAIN.steps and done.seconds > 0
  loss = [x['loss'] for x in log]
  assert np.isfinite(loss).all()
  assert np.mean(loss[-5:]) < 0.5 * loss[0]
  # And what counts: fewer rounds of real decoding, for the same tokens.
  answers = tiny.decode(done.params)
  for a, b in zip(answers, tiny.untrained(), strict=True):
    np.testing.assert_array_equal(a.tokens, b.tokens)
  before = tokens_per_round(tiny.untrained())
  assert before < 1.3
  assert tokens_per_round(answers) > before + 1


def test_basis_and_codes_of_a_run(trained):
  done, _, _ = trained
  fresh = tiny.fresh_state()
  np.testing.assert_array_equal(done.params.codes_VR, fresh.codes_VR)
  np.testing.assert_allclose(done.codes_VR, fresh.codes_VR, atol=1e-6)
  assert done.codes_VR.dtype == np.float64
  start, end = (
    x.readouts_RD for x in (fresh.weights['injection'], done.params.injection)
  )
  for a, b in zip(start, end, strict=True):
    np.testing.assert_allclose(a, done.basis.axes_DR.T, atol=1e-6)
    assert np.abs(a - b).max() > 1e-3


def test_the_same_seed_gives_the_same_losses_and_compiles_nothing(trained):
  _, log, compiled = trained
  assert compiled[0] > 0, 'the counter does not count'
  assert compiled[0] == compiled[-1], 'a later step compiled'
  before = len(COMPILATIONS)
  _, again, _ = run()
  assert [float(x['loss']) for x in again] == [float(x['loss']) for x in log]
  # Neither do other values of what is scheduled.
  other = dataclasses.replace(
    tiny.TRAIN, steps=3, learning_rate=1e-3, ce_end=0.5, warmup=0.5
  )
  _, different, _ = run(other)
  assert float(different[-1]['loss']) != float(log[2]['loss'])
  assert len(COMPILATIONS) == before


def test_the_number_of_steps_from_a_time(trained, monkeypatch):
  del trained  # has compiled the step
  clock = itertools.count()
  monkeypatch.setattr(fit.time, 'perf_counter', lambda: 0.1 * next(clock))
  monkeypatch.setattr(fit, '_TIMED_STEPS', 2)
  # 0.1 s for 2 steps, so 9 in 0.45 s; those that were timed do not count.
  done, log, _ = run(seconds=0.4501)
  assert done.steps == len(log) == 9
  assert done.seconds == pytest.approx(0.1)


def test_batches():
  feed = batches(10, 4, seed=3)
  first = [next(feed) for _ in range(6)]
  assert all(x.shape == (4,) for x in first)
  for epoch in (first[:2], first[2:4], first[4:]):
    assert len(set(np.concatenate(epoch))) == 8  # 2 of 10 are left over
  assert set(np.concatenate(first)) == set(range(10))
  again = batches(10, 4, seed=3)
  np.testing.assert_array_equal(first, [next(again) for _ in range(6)])
  other = batches(10, 4, seed=4)
  assert any((next(other) != x).any() for x in first)


def test_features_are_those_of_a_direct_forward(monkeypatch):
  monkeypatch.setattr(features, '_ROWS', 3)  # two passes, the last one padded
  target, data, taps = tiny.target(), tiny.data(), tiny.DRAFT.taps
  some = dataclasses.replace(
    data, tokens_NT=data.tokens_NT[:5], answer_N=data.answer_N[:5],
    length_N=data.length_N[:5],
  )  # fmt: skip
  corpus = compute_corpus(target, some, taps)
  tokens_BQ = jnp.asarray(some.tokens_NT)
  cache = init_cache(target.cfg, *tokens_BQ.shape)
  out = jax.jit(forward, static_argnums=(0, 4))(
    target.cfg, target.params, tokens_BQ, cache, taps
  )
  np.testing.assert_allclose(
    corpus.features_NTP[:5], out.features_BQP, 1e-4, 1e-4
  )
  np.testing.assert_allclose(corpus.teacher_NTD[:5], out.hidden_BQD, 1e-4, 1e-4)
  np.testing.assert_array_equal(corpus.tokens_NT[:5], some.tokens_NT)
  np.testing.assert_array_equal(corpus.loss_mask_NT, some.loss_mask())


def test_features_beyond_the_memory_are_refused(monkeypatch, refused):
  monkeypatch.setattr(features, '_fill', None)
  data = tiny.data()
  data = dataclasses.replace(data, tokens_NT=np.tile(data.tokens_NT, (5, 1)))
  # 2 passes of 32 rows x 40 tokens x 32 wide x (3 taps + 1) x 4 bytes.
  need = 64 * 40 * 32 * 4 * 4
  have = int(need / 0.8)
  arguments = (tiny.target(), data, tiny.DRAFT.taps)
  monkeypatch.setattr(features, 'available_bytes', lambda: have + 2)
  features.check_size(*arguments)
  monkeypatch.setattr(features, 'available_bytes', lambda: have - 2)
  message = (
    f'the states of 40 sequences need {need / 2**30:.1f} GiB, '
    f'{have / 2**30:.1f} GiB are free; use fewer sequences'
  )
  with refused(message):
    compute_corpus(*arguments)
  with refused(message):  # and before a training run computes anything
    fit.check(tiny.target(), tiny.DRAFT, data, tiny.TRAIN, batch=tiny.COUNT)


@pytest.mark.parametrize(
  'change, message',
  (
    (
      dict(batch=tiny.COUNT + 1),
      '8 sequences are less than one batch of 9; write more data or lower the '
      'batch',
    ),
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(log_every=0), 'log_every = 0, expected at least 1'),
    (dict(seconds=-1.0), 'seconds = -1.0, expected at least 0'),
    (
      dict(train=dataclasses.replace(tiny.TRAIN, anchors=41)),
      'anchors = 41, expected at most the 40 tokens of a sequence',
    ),
    (
      dict(cfg=dataclasses.replace(tiny.DRAFT, vocab=62)),
      'drafter dspine was made for a target of vocab 62; tiny has 61',
    ),
    (
      dict(cfg=dataclasses.replace(tiny.DRAFT, taps=(1, 5))),
      'drafter dspine taps layers (1, 5); tiny has outputs 0..4 before its '
      'last',
    ),
    (
      dict(tokens=lambda x: x.at[3, 5].set(61)),
      'the data has token id 61, tiny has 0..60: another target wrote it',
    ),
    (
      dict(tokens=lambda x: jnp.tile(x, (1, 7))),
      'sequences of 280 tokens exceed the context of 256 that tiny was '
      'trained for',
    ),
  ),
)
def test_refused_before_anything_is_computed(
  change, message, refused, monkeypatch
):
  for name in ('fit_basis', 'compute_corpus'):
    monkeypatch.setattr(fit, name, None)
  settings = dict(batch=tiny.COUNT, cfg=tiny.DRAFT, train=tiny.TRAIN) | change
  tokens = settings.pop('tokens', lambda x: x)
  data = tiny.data()
  tokens_NT = np.asarray(tokens(jnp.asarray(data.tokens_NT)))
  data = dataclasses.replace(data, tokens_NT=tokens_NT)
  with refused(message):
    fit.fit(tiny.target(), data=data, **settings)


def test_the_drafter_has_the_proportions_of_its_target():
  for field in ('vocab', 'width', 'heads', 'kv_heads', 'head_dim', 'ffn'):
    assert getattr(tiny.DRAFT, field) == getattr(tiny.CFG, field)
  assert tiny.DRAFT.taps == tap_ids(6, 3) == (1, 2, 3)
  assert tiny.DRAFT.causal and tiny.DRAFT.slots == 4


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(layers=0), 'layers = 0, expected at least 1'),
    (dict(rank=0), 'rank = 0, expected at least 1'),
    (dict(message=-1), 'message = -1, expected at least 1'),
    (dict(taps=0), 'taps = 0, expected at least 1'),
    (dict(taps=9), 'target of 6 layers has too few for 9 taps, ...'),
    (dict(block=1), 'block = 1 leaves no slot to propose'),
    (dict(mask_id=61), 'mask_id = 61 is outside the vocabulary of 61'),
    (dict(rank=33), 'rank = 33 exceeds min(width, vocab - 1) = 32'),
  ),
)
def test_drafters_that_cannot_be(change, message, refused):
  sizes = dict(layers=2, block=5, mask_id=7, taps=3, rank=12, message=10)
  with refused(message):
    drafter_config(tiny.CFG, **(sizes | change))
