"""Trains a drafter on data its target wrote."""

import functools

import jax
import numpy as np
from absl import logging

from experiments import common
from spinejax.compat.checkpointing import Checkpoints
from spinejax.drafters.bundle import write_bundle
from spinejax.drafters.codes import codes_hash
from spinejax.drafters.files import check_destination
from spinejax.drafters.layouts import LAYOUTS
from spinejax.errors import InputError
from spinejax.report.results import portable
from spinejax.report.tensorboard import Writer
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target
from spinejax.train import evaluate, loop, setup
from spinejax.train.input import make_holdout, make_input
from spinejax.train.shards import DataSet, open_data
from spinejax.train.step import TrainConfig

# Of a config, what may differ when a run is taken up again.
_FREE = ('out', 'data', 'mesh', 'every', 'evaluate', 'target')


# Sections of TensorBoard's page; what is not named here is a term of the loss.
_SECTIONS = {
  'loss': 'loss/total',
  'grad_norm': 'optimizer/grad_norm',
  'learning_rate': 'optimizer/learning_rate',
  'supervised': 'data/answer_tokens',
  'step_ms': 'speed/step_ms',
  'tokens_per_s': 'speed/tokens_per_s',
  'flops_per_s': 'speed/flops_per_s',
  'tokens_per_round': 'decode/tokens_per_round',
}


def logged(writer: Writer, step: int, scalars: dict) -> None:
  """To TensorBoard, and a line to the log."""
  flat = {
    _SECTIONS.get(k, f'loss/{k}'): float(v)
    for k, v in scalars.items()
    if not np.ndim(v)
  }
  for k, v in scalars.items():
    if np.ndim(v):
      flat |= {f'{k[:-2]}/{j + 1}': float(x) for j, x in enumerate(v)}
  writer.scalars(step, flat)
  quiet = ('optimizer/', 'data/', 'speed/flops')
  told = [
    f'{k.split("/")[1] if "accuracy" not in k else k} {v:.4g}'
    for k, v in flat.items()
    if not k.startswith(quiet) and ('accuracy' not in k or k.endswith('/1'))
  ]
  logging.info('step %d: %s', step, ', '.join(told))


def held_out(config, data: DataSet) -> list[np.ndarray]:
  """Prompts of the sequences that are not trained on; none if none is asked."""
  if not config.every.evaluate:
    return []
  count, length = config.holdout, config.length
  batch = next(make_holdout(data, batch=count, length=length, holdout=count))
  pairs = zip(batch['tokens_BT'], batch['answer_B'], strict=True)
  return [tokens[:answer] for tokens, answer in pairs]


def main(config):
  train, every = TrainConfig(**config.training), loop.Every(**config.every)
  common.positive(config, 'batch', 'length')
  dtype, out = common.dtype(config.dtype), common.folder(config.out)
  check_destination(out)
  if config.every.evaluate and not config.holdout:
    raise InputError('every.evaluate needs holdout, sequences to evaluate on')
  target = load_target(config.target, dtype, mesh=make_mesh(config.mesh))
  data = open_data(config.data, target=target, longest=config.length)
  lengths = (*config.buckets, config.length)
  setup.check_batch(target, train, data, batch=config.batch, lengths=lengths)
  feed = make_input(
    data, batch=config.batch, length=config.length, seed=train.seed,
    workers=config.workers, buckets=config.buckets, holdout=config.holdout,
  )  # fmt: skip
  task = setup.make_task(
    target, config.method, train, drafter=config.drafter, loss=config.loss
  )
  LAYOUTS[config.method].settings(task.cfg)  # as it is written at the end
  prompts = held_out(config, data)
  begun = setup.start(target, task)
  draft_of = functools.partial(evaluate.drafter_of, task, begun.frozen)
  new = dict(max_new_tokens=config.evaluate.max_new_tokens)
  if prompts:
    evaluate.check_answers(target, draft_of(begun.state), prompts, **new)

  about = portable(
    {k: v for k, v in config.to_dict().items() if k not in _FREE}
  ) | {'head_hash': target.head_hash, 'data_hash': data.hash}
  checkpoints = Checkpoints(out / 'checkpoints')
  state = loop.resume(checkpoints, begun.state, feed, about)
  at = int(state.step)
  logging.info(
    '%s: %.1f M weights, %d sequences and %d held out; from step %d to %d',
    config.method, sum(x.size for x in jax.tree.leaves(state.weights)) / 1e6,
    len(data) - config.holdout, config.holdout, at, train.steps,
  )  # fmt: skip
  with Writer(out / 'tensorboard', goes_on_at=at + 1) as writer:

    def score(state) -> float:
      done = evaluate.answers(target, draft_of(state), prompts, **new)
      writer.text(int(state.step), 'answer', done[0].text)
      return evaluate.tokens_per_round(done).value

    writer.config(config.to_dict())
    state = loop.run(
      begun.task, train, begun.frozen, state, feed, every=every,
      log=functools.partial(logged, writer), checkpoints=checkpoints,
      about=about, evaluate=score,
    )  # fmt: skip
  card = {
    'target': target.name,
    'data': {k: v for k, v in data.manifest.items() if k != 'shards'},
    'steps': train.steps,
    'training': portable(config.to_dict()),
  }
  codes = None if begun.codes_VR is None else codes_hash(begun.codes_VR)
  write_bundle(
    out, draft_of(state), begun.basis, target.head_hash, codes, card,
    eight_bit=False,
  )  # fmt: skip
  print(out)


if __name__ == '__main__':
  common.run(main)
