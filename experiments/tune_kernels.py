"""Finds the fastest config of each kernel by shape, and writes the tables."""

import importlib.metadata
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from experiments.kernel_cases import OPS, Case, cases, platform_of
from experiments.kernel_timing import Stack, interleaved_us, relative_error
from pallas_kernels import tuning
from spinejax.errors import InputError


def tuned(case: Case, config) -> dict | None:
  """The entry of a shape, None where no kernel runs, or none is right."""
  layers = 2 if config.toy else case.layers()
  stack = Stack(case, layers)
  exact = stack.one(case.reference, jnp.float32)
  with platform_of(case) as platform:
    if platform is None or case.candidates[platform] == [None]:
      return None
    programs, kept = [stack.program(case.reference)], []
    for candidate in case.candidates[platform][: config.most or None]:

      def kernel(x, own, candidate=candidate):
        return case.kernels[platform](x, own, candidate)

      try:
        error = relative_error(stack.one(kernel), exact)
        program = stack.program(kernel)
      except Exception as failed:  # the other candidates are worth having
        print(f'  {candidate}: {failed!r:.200}', file=sys.stderr)
        continue
      if error > config.most_error:
        print(f'  {candidate}: error {error:.1e}', file=sys.stderr)
        continue
      programs.append(program)
      kept.append(candidate)
    took = interleaved_us(programs, layers, config.calls, config.repeats)
  if not kept:
    return None
  xla_us, *times = (float(np.median(each)) for each in took)
  best = int(np.argmin(times))
  return dict(
    config=config_fields(kept[best]),
    time_us=times[best],
    xla_us=xla_us,
    tried=len(kept),
  )


def config_fields(config) -> dict:
  """A config as JSON values."""
  return json.loads(json.dumps(config, default=vars))


def write(path: pathlib.Path, entries: dict) -> None:
  """Adds entries to a table, whole or not at all."""
  table = dict(jax=jax.__version__, entries={})
  if path.exists():
    table['entries'] = json.loads(path.read_text(encoding='utf-8'))['entries']
  table['entries'] |= entries
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_suffix('.tmp')
  temporary.write_text(
    json.dumps(table, indent=1, sort_keys=True) + '\n', encoding='utf-8'
  )
  os.replace(temporary, path)


def main(config):
  common.positive(config, 'repeats', 'calls')
  for op in config.ops:
    if op not in OPS:
      raise InputError(f'ops has {op!r}, expected {", ".join(OPS)}')
  kind = jax.local_devices()[0].device_kind
  print(f'{kind}, jax {importlib.metadata.version("jax")}', file=sys.stderr)
  paths = []
  for op in config.ops:
    path = tuning.path_of(op, kind)
    if config.out:
      path = pathlib.Path(config.out) / op / path.name
    for case in cases(op, config.toy):
      print(f'{case.op} {case.shape}', file=sys.stderr)
      entry = tuned(case, config)
      if entry is None:
        continue
      print(
        f'{case.op} {case.shape}: {entry["time_us"]:.3g} us, XLA '
        f'{entry["xla_us"]:.3g} us, {entry["config"]}'
      )
      write(path, {case.key: entry})  # after each
      paths.append(path)
      jax.clear_caches()
  for path in dict.fromkeys(paths):
    print(path)


if __name__ == '__main__':
  common.run(main)
