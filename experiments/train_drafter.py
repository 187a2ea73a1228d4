"""Trains a DSpine drafter on data its target wrote."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
from absl import logging
from ml_collections import config_flags

from experiments import common
from spinejax.drafters.bundle import write_bundle
from spinejax.drafters.codes import codes_hash
from spinejax.drafters.dspine import dspine
from spinejax.drafters.loading import DraftModel
from spinejax.report.tensorboard import Writer
from spinejax.target.loading import load_target
from spinejax.train import self_data
from spinejax.train.fit import drafter_config, fit
from spinejax.train.step import TrainConfig

_CONFIG = config_flags.DEFINE_config_file('config', lock_config=True)


def main(_):
  config = _CONFIG.value
  target = load_target(config.target, jnp.dtype(config.dtype))
  data = pathlib.Path(config.data)
  cfg = drafter_config(target.cfg, **config.drafter)
  out = pathlib.Path(config.out)
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

    done = fit(
      target, cfg, self_data.load(data), TrainConfig(**config.training),
      batch=config.batch, seconds=config.seconds, log=log,
      log_every=config.log_every,
    )  # fmt: skip
  card = {
    'target': target.name,
    'data': json.loads(data.with_name('manifest.json').read_text()),
    'steps': done.steps,
    'seconds': round(done.seconds, 1),
    'training': config.to_dict(),
  }
  write_bundle(
    out, DraftModel(dspine(cfg), done.params, target.head_hash), done.basis,
    target.head_hash, codes_hash(done.codes_VR), card, eight_bit=False,
  )  # fmt: skip
  print(out)


if __name__ == '__main__':
  common.run(main)
