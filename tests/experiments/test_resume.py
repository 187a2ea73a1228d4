"""A training run that is killed, at any moment, and started again."""

import pathlib
import random

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import (
  EventAccumulator,
)

from spinejax.drafters.files import sha256_of
from spinejax.target.loading import load_target
from spinejax.train.shards import Writer, Written
from tests.experiments import binaries

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'
STEPS, SAVE = 12, 2
KILLED = -9
_LOSS = 'loss/total'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """One with data of which a run needs several epochs."""
  folder = tmp_path_factory.mktemp('resume')
  rng = np.random.default_rng(0)
  writer = Writer(folder / 'data', load_target(str(TINY)), shards=2, config={})
  for _ in range(2):
    writer.add(
      [
        Written('chat', rng.integers(0, 320, int(length)), 4)
        for length in rng.integers(21, 33, 10)
      ]
    )
  return folder


def train(folder, out, method: str, log=1, **how) -> binaries.Done:
  fields = {
    'target': TINY, 'data': folder / 'data', 'out': out, 'batch': 4,
    'length': 32, 'buckets': '(20,)', 'holdout': 0, 'training.steps': STEPS,
    'training.anchors': 3, 'every.log': log, 'every.evaluate': 0,
    'every.save': SAVE, 'drafter.layers': 1, 'drafter.block': 4,
    'drafter.mask_id': 3, 'drafter.taps': 1, 'dtype': 'float32',
    'results': folder / 'results',
  }  # fmt: skip
  if method == 'dspine':
    fields |= {'drafter.rank': 8, 'drafter.message': 8}
  return binaries.fork(
    'train_drafter',
    f'--config=configs/train_smollm2.py:{method}',
    *(f'--config.{field}={value}' for field, value in fields.items()),
    programs=folder / 'programs',
    **how,
  )


def losses(run: pathlib.Path) -> dict[int, set[float]]:
  """What was ever logged for each step, by all starts of a run."""
  found = {}
  for file in (run.parent / 'results' / 'train' / run.name).iterdir():
    events = EventAccumulator(str(file)).Reload()
    if _LOSS in events.Tags()['scalars']:
      for event in events.Scalars(_LOSS):
        found.setdefault(event.step, set()).add(event.value)
  return found


def succeeded(done: binaries.Done) -> None:
  assert done.status == 0, done.err


def weights(run: pathlib.Path) -> str:
  return sha256_of(run / 'model.safetensors')


@pytest.mark.parametrize('method, kills', (('dspine', 2), ('dflash2', 1)))
def test_a_killed_run_goes_on_to_the_same_weights(folder, method, kills):
  whole, killed = folder / f'{method}-whole', folder / f'{method}-killed'
  succeeded(train(folder, whole, method))
  expected = losses(whole)
  assert [*expected] == [*range(1, STEPS + 1)]
  rng, moments = random.Random(method), []
  for i in range(kills):
    # To save a checkpoint are 25 of these events, the removal of an old one
    # among them, and to take one up 15.
    moments.append(rng.randint(5 if i else 30, 65))
    how = dict(kill_at=(killed / 'checkpoints', moments[-1]))
    assert train(folder, killed, method, **how).status == KILLED
    assert not (killed / 'model.safetensors').exists()
  succeeded(train(folder, killed, method))
  assert weights(killed) == weights(whole)
  found = losses(killed)
  assert STEPS in found
  for step, values in found.items():
    assert values == expected[step], (step, moments)


def test_a_run_without_a_log_writes_no_curves(folder):
  """That it has none is nothing to fail for behind a training."""
  out = folder / 'silent'
  succeeded(train(folder, out, 'dflash', log=0))
  assert (out / 'model.safetensors').exists()
  assert not (folder / 'results' / 'train' / 'silent.json').exists()
