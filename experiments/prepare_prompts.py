"""Makes prompt files of public benchmarks, and checks that they are the same
everywhere."""

import hashlib
import pathlib

from experiments import common
from spinejax import benchmarks
from spinejax.errors import InputError
from spinejax.report.results import atomic_write


def main(config):
  made = {}
  for name in config.benchmarks:
    source = pathlib.Path(config.downloads) / config.files.get(name, '')
    turns = benchmarks.turns_of(name, source)
    data = benchmarks.to_jsonl(turns)
    sha256 = hashlib.sha256(data).hexdigest()
    expected = config.sha256.get(name, '')
    if expected and sha256 != expected:
      raise InputError(
        f'{name}: {len(turns)} prompts of SHA-256 {sha256}, expected '
        f'{expected}; its source is not the one that the config names'
      )
    made[name] = data
    print(f'{name}: {len(turns)} prompts, {sha256}')
  if not made:
    raise InputError('benchmarks is empty, expected at least one')
  out = common.folder(config.out)
  for name, data in made.items():
    atomic_write(out / f'{name}.jsonl', data)
  print(out)


if __name__ == '__main__':
  common.run(main)
