"""Trains a drafter on data its target wrote."""

import functools
import pathlib

import jax
import numpy as np
from absl import logging

from experiments import common
from spinejax import report
from spinejax.compat.checkpointing import Checkpoints
from spinejax.drafters.bundle import is_bundle, write_bundle
from spinejax.drafters.codes import codes_hash
from spinejax.drafters.files import CONFIG, check_destination
from spinejax.drafters.layouts import LAYOUTS
from spinejax.errors import InputError
from spinejax.report.history import History
from spinejax.report.results import portable
from spinejax.report.tensorboard import Writer
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target
from spinejax.train import evaluate, loop, setup
from spinejax.train.input import make_holdout, make_input
from spinejax.train.shards import DataSet, open_data
from spinejax.train.step import TrainConfig

# Of a config, what may differ when a run is taken up again.
_FREE = ('out', 'data', 'mesh', 'every', 'evaluate', 'target', 'results')


# Sections of TensorBoard's page; what is not named here is a term of the loss.
_SECTIONS = {
  'loss': 'loss/total',
  'grad_norm': 'optimizer/grad_norm',
  'learning_rate': 'optimizer/learning_rate',
  'supervised': 'data/answer_tokens',
  'step_ms': 'speed/step_ms',
  'tokens_per_s': 'speed/tokens_per_s',
  'flops_per_s': 'speed/flops_per_s',
  'mfu': 'speed/mfu',
  'tokens_per_round': 'decode/tokens_per_round',
}

# Those of the table of hyperparameters.
_METRICS = ('loss/total', 'decode/tokens_per_round')


def logged(writer: Writer, history: History, step: int, scalars: dict) -> None:
  """To TensorBoard, to the history, and a line to the log."""
  history.add(step, {k: v for k, v in scalars.items() if not np.ndim(v)})
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


def place(out: pathlib.Path) -> None:
  """Refuses a folder that a run could not write to, or would harm.

  Raises:
    InputError: see `check_destination`; or another run is writing there, or a
      model lies there that did not come from training.
  """
  check_destination(out)
  if (out / CONFIG).exists() and not is_bundle(out):
    raise InputError(
      f'{out}: holds a model that was not trained here; choose another folder'
    )
  common.folder(out / 'checkpoints')
  common.hold(out)


def held_out(config, data: DataSet) -> list[np.ndarray]:
  """Prompts of the sequences that are not trained on; none if none is asked."""
  if not config.every.evaluate:
    return []
  count, length = config.holdout, config.length
  batch = next(make_holdout(data, batch=count, length=length, holdout=count))
  pairs = zip(batch['tokens_BT'], batch['answer_B'], strict=True)
  return [tokens[:answer] for tokens, answer in pairs]


def write_result(config, data: DataSet, rows: list[dict], started) -> str:
  """The curves of the run; the path of the result file, with a figure.

  Where it was taken up again, `started` is that of the last start.
  """
  tokens = config.batch * float(data.length_N.mean())  # a step, on average
  rows = [
    {'target': data.manifest['target'], 'drafter': config.method}
    | row
    | {'training_tokens': round(row['step'] * tokens)}
    for row in rows
  ]
  result = report.results.build(
    'train', 'measured', rows, config=config.to_dict(), started=started
  )
  name = pathlib.Path(config.out).name
  path = report.results.write(result, name, root=config.results)
  curve = [
    (row['training_tokens'], row['tokens_per_round'])
    for row in rows
    if 'tokens_per_round' in row
  ]
  if curve:
    figure = report.figures.against_tokens(
      {'held-out prompts': curve},
      title=f'{config.method} for {data.manifest["target"]}',
      label='measured',
      unit='tokens a round',
    )
    report.figures.save(figure, path.with_suffix('.png'))
  return path


def main(config):
  started = report.results.now()
  train, every = TrainConfig(**config.training), loop.Every(**config.every)
  common.positive(config, 'batch', 'length')
  dtype, out = common.dtype(config.dtype), common.folder(config.out)
  place(out)
  common.file_name('the last part of out', out.name)
  logs = common.logs(config, 'train', out.name)
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
  history = History(out / 'history.jsonl', goes_on_at=at + 1)
  with Writer(logs, goes_on_at=at + 1) as writer:

    def score(state) -> float:
      done = evaluate.answers(target, draft_of(state), prompts, **new)
      writer.text(int(state.step), 'answer', done[0].text)
      return evaluate.tokens_per_round(done).value

    writer.config(config.to_dict())
    writer.hparams(config.to_dict(), _METRICS)
    state = loop.run(
      begun.task, train, begun.frozen, state, feed, every=every,
      log=functools.partial(logged, writer, history), checkpoints=checkpoints,
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
  if rows := history.rows():
    print(write_result(config, data, rows, started))
  print(out)


if __name__ == '__main__':
  common.run(main)
