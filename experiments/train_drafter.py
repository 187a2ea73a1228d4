"""Trains a DSpine drafter on data its target wrote."""

import pathlib

import numpy as np
from absl import logging

from experiments import common
from spinejax.decode.request import whole
from spinejax.drafters.bundle import write_bundle
from spinejax.drafters.codes import codes_hash
from spinejax.drafters.dspine import dspine
from spinejax.drafters.files import check_destination
from spinejax.drafters.loading import DraftModel
from spinejax.errors import InputError
from spinejax.report.results import portable
from spinejax.report.tensorboard import Writer
from spinejax.target.loading import load_target
from spinejax.train import self_data
from spinejax.train.fit import check, drafter_config, fit
from spinejax.train.step import TrainConfig


def main(config):
  train = TrainConfig(**config.training)
  data = self_data.load(pathlib.Path(config.data))
  manifest = self_data.load_manifest(pathlib.Path(config.data))
  whole('training.seed', train.seed, 0, 2**31)
  dtype, out = common.dtype(config.dtype), common.folder(config.out)
  check_destination(out)
  common.folder(out / 'tensorboard')
  target = load_target(config.target, dtype)
  if manifest['head_hash'] != target.head_hash:
    raise InputError(
      f'{config.data}: written by {manifest["target"]}, not by {target.name}'
    )
  cfg = drafter_config(target.cfg, **config.drafter)
  of = (target, cfg, data, train)
  how = {x: config[x] for x in ('batch', 'seconds', 'log_every')}
  check(*of, **how)
  with Writer(out / 'tensorboard') as writer:

    def log(step, scalars):
      flat = {k: float(v) for k, v in scalars.items() if not v.ndim}
      for k, v in scalars.items():
        if v.ndim:
          flat |= {f'{k[:-2]}/{j + 1}': float(x) for j, x in enumerate(v)}
      writer.scalars(step, flat)
      logging.info(
        'step %d loss %.3f ce %.3f refined accuracy of slots 1-4 %s', step,
        flat['loss'], flat['ce'],
        np.round(scalars['refined_accuracy_S'][:4], 3),
      )  # fmt: skip

    done = fit(*of, **how, log=log)
  card = {
    'target': target.name,
    'data': manifest,
    'steps': done.steps,
    'seconds': round(done.seconds, 1),
    'training': portable(config.to_dict()),
  }
  write_bundle(
    out, DraftModel(dspine(cfg), done.params, target.head_hash), done.basis,
    target.head_hash, codes_hash(done.codes_VR), card, eight_bit=False,
  )  # fmt: skip
  print(out)


if __name__ == '__main__':
  common.run(main)
