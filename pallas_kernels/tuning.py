"""Tuned configs: for each operation and device kind, a JSON file by shape.

`pallas_kernels/<op>/tuned/<device kind>.json` is written by
`experiments.tune_kernels` and read when a kernel is traced. An entry holds the
fastest `config` with its `time_us` and the `xla_us` of the reference; it makes
the kernel the default where that is the longer. A shape without an entry gets
the heuristic of the operation's `config`, if the kernel is asked for by name.
"""

import functools
import json
import logging
import pathlib

import jax

_ROOT = pathlib.Path(__file__).parent


def path_of(op: str, device_kind: str) -> pathlib.Path:
  """The file of an operation's configs on a kind of device."""
  name = device_kind.lower().replace(' ', '_').replace('/', '_')
  return _ROOT / op / 'tuned' / f'{name}.json'


@functools.cache
def table(op: str, device_kind: str) -> dict[str, dict]:
  """Entries by the key of a shape; empty where nothing was tuned."""
  path = path_of(op, device_kind)
  if not path.exists():
    return {}
  return json.loads(path.read_text(encoding='utf-8'))['entries']


def wins(op: str, key: str) -> bool:
  """Whether the kernel was measured to be faster than XLA's fusion of its
  reference, for a shape on the device at hand; else it is not used unless
  asked for by name."""
  entry = table(op, jax.local_devices()[0].device_kind).get(key)
  return entry is not None and entry['time_us'] < entry['xla_us']


@functools.cache
def choose(op: str, make, key: str, heuristic):
  """The tuned config of a shape on the device at hand, or the heuristic.

  Args:
    make: the config's class; an entry's `config` holds its fields.
    heuristic: the config where there is no entry; the choice is logged once.
  """
  kind = jax.local_devices()[0].device_kind
  entry = table(op, kind).get(key)
  if entry is not None:
    return make(**entry['config'])
  if kind != 'cpu':  # there kernels only run in interpreters
    logging.getLogger(__name__).info(
      '%s %s: no tuned config for %s, using %s', op, key, kind, heuristic
    )
  return heuristic
