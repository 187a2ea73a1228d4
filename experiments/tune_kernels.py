"""Finds the fastest config of each kernel by shape, and writes the tables."""

import dataclasses
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
  xla = stack.program(case.reference)

  def program_of(platform, candidate):
    """None, said why, of a config that fails or computes something else."""

    def kernel(x, own):
      return case.kernels[platform](x, own, candidate)

    try:
      error = relative_error(stack.one(kernel), exact)
      if error <= config.most_error:
        return stack.program(kernel)
      print(f'  {candidate}: error {error:.1e}', file=sys.stderr)
    except Exception as failed:  # the other candidates are worth having
      print(f'  {candidate}: {failed!r:.200}', file=sys.stderr)
    return None

  def timed(platform, candidates):
    """Microseconds of XLA, and of the candidates that work."""
    programs = {c: program_of(platform, c) for c in candidates}
    programs = {c: program for c, program in programs.items() if program}
    xla_us, *times = (
      float(np.median(each))
      for each in interleaved_us(
        [xla, *programs.values()], layers, config.calls, config.repeats
      )
    )
    return xla_us, dict(zip(programs, times, strict=True))

  with platform_of(case) as platform:
    if platform is None or case.candidates[platform] == [None]:
      return None
    candidates = case.candidates[platform][: config.most or None]
    xla_us, times = timed(platform, candidates)
    tried = len(times)
    if not times:
      return None
    best = min(times, key=times.get)
    joined = join(times, candidates[0])
    if joined not in times:
      xla_us, times = timed(platform, [best, joined])
      best = min(times, key=times.get)
      tried += 1
  return dict(
    config=config_fields(best),
    time_us=times[best],
    xla_us=xla_us,
    tried=tried,
  )


def join(times: dict, base):
  """All fields that each alone made `base` faster, together."""
  if base not in times:
    return min(times, key=times.get)
  fields = [field.name for field in dataclasses.fields(base)]
  best = {}
  for candidate in times:
    changed = [f for f in fields if getattr(candidate, f) != getattr(base, f)]
    if len(changed) == 1 and times[candidate] < times[base]:
      best.setdefault(changed[0], []).append(candidate)
  values = {
    field: getattr(min(found, key=times.get), field)
    for field, found in best.items()
  }
  try:
    return dataclasses.replace(base, **values)
  except ValueError:  # together they do not fit
    return min(times, key=times.get)


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
