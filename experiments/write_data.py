"""Lets a target write the data its drafter is trained on.

A run that was stopped goes on where it was when the same command is given
again.
"""

import hashlib
import pathlib

from experiments import common
from spinejax.prompts import read_prompts
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target
from spinejax.train import self_data

_HOW = (
  'length', 'max_prompt', 'max_turn', 'batch', 'shard', 'seed',
  'turn_temperature', 'turn_top_k', 'temperature', 'top_k',
)  # fmt: skip


def main(config):
  how = self_data.Settings(**{field: config[field] for field in _HOW})
  given, made_by = [], config.to_dict()
  if config.prompts:
    given = [turns[0] for turns in read_prompts(config.prompts).turns]
    data = pathlib.Path(config.prompts).read_bytes()
    made_by['prompts_sha256'] = hashlib.sha256(data).hexdigest()
  starts = self_data.plan(
    config.openings, given, config.answer_prompts, config.seed
  )
  dtype, mesh = common.dtype(config.dtype), make_mesh(config.mesh)
  out = common.folder(made_by.pop('out'))
  common.hold(out)
  target = load_target(config.target, dtype, mesh)
  manifest = self_data.write(target, starts, how, out, made_by)
  for kind, counts in manifest['kinds'].items():
    print(f'{kind}: {counts["sequences"]} sequences, {counts["tokens"]} tokens')
  print(out / 'manifest.json')


if __name__ == '__main__':
  common.run(main)
