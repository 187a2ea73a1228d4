"""A training run: its log, its checkpoints, and what it refuses."""

import dataclasses
import itertools
import types

import jax
import numpy as np
import pytest

from spinejax.compat.checkpointing import Checkpoints
from spinejax.energy import hardware
from spinejax.train import loop
from spinejax.train.flops import flops_per_step
from spinejax.train.input import make_input
from spinejax.train.loop import Every, resume
from tests.compilations import COMPILATIONS
from tests.train import tiny

STEPS = 6
TRAIN = dataclasses.replace(tiny.TRAIN, steps=STEPS)
ABOUT = {'method': 'dspine', 'training': {'steps': STEPS, 'anchors': 6}}


def run(train=TRAIN, feed=None, state=None, **settings):
  """Weights at the end, what was logged, and compilations before each log."""
  begun, log, compiled = tiny.begin(train=train), [], []

  def keep(step, told):
    compiled.append(len(COMPILATIONS))
    log.append((step, told))

  settings = dict(every=Every(log=1), log=keep) | settings
  state = loop.run(
    begun.task, train, begun.frozen, begun.state if state is None else state,
    itertools.repeat(tiny.random_batch()) if feed is None else feed,
    **settings,
  )  # fmt: skip
  return jax.device_get(state), log, compiled


def losses(log):
  return [float(told['loss']) for _, told in log if 'loss' in told]


def equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  tiny.write(folder, 29)
  return folder


def feed_of(folder):
  return make_input(folder, batch=8, length=tiny.LENGTH, seed=0)


def test_the_same_seed_gives_the_same_losses_and_compiles_nothing():
  state, log, compiled = run()
  assert [step for step, _ in log] == [*range(1, STEPS + 1)]
  assert compiled[0] > 0, 'the counter does not count'
  assert compiled[0] == compiled[-1], 'a later step compiled'
  before = len(COMPILATIONS)
  again, same, _ = run()
  assert losses(same) == losses(log)
  equal(again.weights, state.weights)
  # Neither do other values of what is scheduled.
  other = dataclasses.replace(TRAIN, steps=4, learning_rate=1e-3, warmup=0.5)
  _, different, _ = run(other)
  assert losses(different)[0] == losses(log)[0]
  assert losses(different)[3] != losses(log)[3]
  assert len(COMPILATIONS) == before


def test_what_is_logged(monkeypatch):
  clock = itertools.count()
  fake = types.SimpleNamespace(perf_counter=lambda: float(next(clock)))
  monkeypatch.setattr(loop, 'time', fake)
  h200 = hardware.CHIPS['h200']
  monkeypatch.setattr(hardware, 'of_device', lambda kind: h200)
  _, log, _ = run(every=Every(log=4))
  assert [step for step, _ in log] == [4, STEPS]  # and the last one
  for step, told in log:
    assert told['learning_rate'] == TRAIN.learning_rate_at(step - 1)
    assert {'loss', 'ce', 'l1', 'refinement', 'grad_norm'} <= told.keys()
    assert told['accuracy_S'].shape == (4,)
  # Seconds of this clock between the readings; the first step is not counted.
  seconds = [
    told['step_ms'] * n / 1e3 for (_, told), n in zip(log, (3, 2), strict=True)
  ]
  tokens = tiny.COUNT * tiny.LENGTH
  assert [told['tokens_per_s'] for _, told in log] == pytest.approx(
    [3 * tokens / seconds[0], 2 * tokens / seconds[1]]
  )
  begun = tiny.begin()
  each = flops_per_step(begun.task, begun.state, tiny.COUNT, tiny.LENGTH)
  assert [told['flops_per_s'] for _, told in log] == pytest.approx(
    [3 * each / seconds[0], 2 * each / seconds[1]]
  )
  for _, told in log:
    assert told['mfu'] == pytest.approx(told['flops_per_s'] / 989e12)
  silent, log, _ = run(every=Every(log=0))
  assert not log and int(silent.step) == STEPS


def test_evaluations(monkeypatch):
  """At their steps and at the end; their time is not that of the steps."""
  now = itertools.count()
  fake = types.SimpleNamespace(perf_counter=lambda: float(next(now)))
  monkeypatch.setattr(loop, 'time', fake)
  seen = []

  def evaluate(state):
    seen.append(int(state.step))
    for _ in range(100):
      next(now)
    return 1.5 + len(seen)

  _, log, _ = run(every=Every(log=5, evaluate=4), evaluate=evaluate)
  assert seen == [4, STEPS]
  told = [(s, x['tokens_per_round']) for s, x in log if len(x) == 1]
  assert told == [(4, 2.5), (STEPS, 3.5)]
  # Step 5 is logged behind the evaluation of step 4.
  speed = [x['tokens_per_s'] for _, x in log if 'loss' in x]
  assert speed[0] > 4 * tiny.COUNT * tiny.LENGTH / 10


def test_a_run_goes_on_from_its_checkpoint(folder, tmp_path):
  """To the very same losses and weights, with a feed that is shuffled."""
  whole, log, _ = run(feed=feed_of(folder))
  first = Checkpoints(tmp_path)
  stop = [None]

  def until(step, told):
    stop.append(float(told['loss']))
    if step == 5:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    run(
      feed=feed_of(folder), every=Every(log=1, save=2), log=until,
      checkpoints=first, about=ABOUT,
    )  # fmt: skip
  first.close()
  again = Checkpoints(tmp_path)
  assert again.steps == [2, 4]
  begun, feed = tiny.begin(train=TRAIN), feed_of(folder)
  state = resume(again, begun.state, feed, ABOUT)
  assert int(state.step) == 4
  state, rest, _ = run(
    feed=feed, state=state, checkpoints=again, about=ABOUT,
    every=Every(log=1, save=2),
  )  # fmt: skip
  assert stop[1:] + losses(rest)[1:] == losses(log)
  assert losses(rest)[0] == stop[5]
  equal(state, whole)
  assert again.steps == [4, 6]
  # A run that is over stays what it is.
  state = resume(again, tiny.begin(train=TRAIN).state, feed_of(folder), ABOUT)
  state, rest, _ = run(feed=feed_of(folder), state=state)
  assert not rest
  equal(state, whole)
  again.close()


def test_a_fresh_folder_changes_nothing(tmp_path):
  begun = tiny.begin()
  assert resume(Checkpoints(tmp_path), begun.state, None, {}) is begun.state


class Feed:
  """Batches without a data set."""

  def __next__(self):
    return tiny.random_batch()

  def get_state(self):
    return {'next': 0}

  def set_state(self, state):
    assert state == {'next': 0}


def test_the_best_checkpoint_is_kept_beside_the_latest(tmp_path):
  scores = {2: 3.0, 4: 2.8, 6: 2.5, 8: 1.5, 12: 2.0}

  def kept(evaluate, save, steps):
    checkpoints = Checkpoints(tmp_path / str(evaluate))
    run(
      dataclasses.replace(TRAIN, steps=steps), feed=Feed(),
      every=Every(log=0, evaluate=evaluate, save=save),
      checkpoints=checkpoints, about={},
      evaluate=lambda state: scores[int(state.step)],
    )  # fmt: skip
    checkpoints.close()
    return checkpoints.steps

  # Those of odd steps were not evaluated: they are not the best.
  assert kept(evaluate=2, save=1, steps=6) == [2, 5, 6]
  # Nor is that of step 6 as good as the drafter of step 4 was.
  assert kept(evaluate=4, save=3, steps=12) == [9, 12]


@pytest.mark.parametrize(
  'change, message',
  (
    (
      {'method': 'dflash'},
      "method = 'dflash', but the run in this folder was begun with 'dspine'; "
      'use that, or another place to write to',
    ),
    # The method before what only follows from it.
    (
      {'method': 'dflash', 'loss': {'gamma': 7.0}},
      "method = 'dflash', but ...",
    ),
    (
      {'training': {'steps': 9, 'anchors': 6}},
      'training.steps = 9, but the run in this folder was begun with 6; ...',
    ),
    ({'batch': 8}, 'batch = 8, but the run in this folder was begun with None;'
     ' use that, or another place to write to'),
  ),
)  # fmt: skip
def test_another_run_is_not_gone_on_with(change, message, refused, saved):
  state = tiny.begin().state
  with refused(message):
    resume(saved, state, Feed(), ABOUT | change)
  assert int(resume(saved, state, Feed(), ABOUT).step) == 0


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  checkpoints = Checkpoints(tmp_path_factory.mktemp('saved'))
  about = ABOUT | {'input': {'next': 0}}
  checkpoints.save(1, tiny.begin().state, about, None)
  yield checkpoints
  checkpoints.close()


def test_a_checkpoint_that_cannot_be_written(tmp_path, refused):
  folder = tmp_path / 'checkpoints'
  checkpoints = Checkpoints(folder)
  folder.rmdir()
  folder.touch()
  with refused(f'{folder}/3: cannot be written (...)'):
    checkpoints.save(3, {'x': np.zeros(3)}, {}, None)


def test_a_checkpoint_of_another_shape(saved, refused):
  state = tiny.begin('dflash').state
  with refused(
    '.../1: damaged, or of another run (...); delete it to go on ...'
  ):
    resume(saved, state, Feed(), ABOUT)


def test_damaged_checkpoints(refused, tmp_path):
  """A flipped bit of an array, which nothing of orbax would notice."""
  begun = tiny.begin()
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, begun.state, ABOUT | {'input': {'next': 0}}, None)
  checkpoints.close()
  largest = max(tmp_path.glob('1/state/**/*'), key=lambda x: x.stat().st_size)
  harmed = bytearray(largest.read_bytes())
  harmed[len(harmed) // 2] ^= 1
  largest.write_bytes(harmed)
  checkpoints = Checkpoints(tmp_path)
  with refused(f'{tmp_path}/1: damaged, or of another run (...'):
    resume(checkpoints, begun.state, Feed(), ABOUT)
  (tmp_path / '1' / '_CHECKPOINT_METADATA').write_text('')
  with refused(f'{tmp_path}/1: damaged, or of another run (...'):
    resume(Checkpoints(tmp_path), begun.state, Feed(), ABOUT)


@pytest.mark.parametrize('every', (Every(log=2), Every(log=0, save=2)))
def test_a_loss_that_is_not_finite(every, refused, tmp_path):
  train = dataclasses.replace(TRAIN, learning_rate=1e30)
  checkpoints = Checkpoints(tmp_path)
  with refused('the loss is nan at step 2; lower learning_rate = 1e+30'):
    run(train, feed=Feed(), every=every, checkpoints=checkpoints, about={})
  assert not checkpoints.steps
  checkpoints.close()


@pytest.mark.parametrize('field', ('log', 'evaluate', 'save'))
def test_every(field, refused):
  every = Every(**{field: 3})
  due = [step for step in range(1, 9) if every.at(field, step, 8)]
  assert due == [3, 6, 8]
  never = Every(**{field: 0})
  assert not any(never.at(field, step, 8) for step in range(1, 9))
  with refused(f'{field} = -1, expected at least 0'):
    Every(**{field: -1})
