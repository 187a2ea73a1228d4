"""Result files: every number with the hardware, code and command behind it.

A result is one JSON object in `results/<experiment>/<name>.json`. Its
`metrics` are flat rows, so that a table, a figure or a fit reads them without
knowing which experiment wrote them.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from spinejax import errors
from spinejax.report.paths import portable_text

# What a number is worth: a clock or counter on named hardware, a compiler's
# own analysis, a formula with stated assumptions, random weights or forced
# acceptance.
LABELS = ('measured', 'compiled', 'modelled', 'synthetic')

_FIELDS = {
  'experiment': str,
  'label': str,
  'device': str,
  'device_kind': str,
  'versions': dict,
  'command': str,
  'config': dict,
  'started': str,
  'finished': str,
  'metrics': list,
}
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]*')
_UTC = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ')
_CODE = ('spinejax', 'pallas_kernels', 'experiments', 'configs')


def now() -> str:
  """The present time in UTC as ISO 8601, to the second."""
  utc = datetime.datetime.now(datetime.UTC)
  return utc.strftime('%Y-%m-%dT%H:%M:%SZ')


def command(argv: Sequence[str] | None = None) -> str:
  """The command line as a user would type it again, free of machine paths.

  Args:
    argv: the arguments with the program first; `sys.argv` if None.

  Returns:
    `python -m <module> ...`, `python <script> ...` or an installed script
    and its arguments, quoted for a shell.
    Paths below the working directory become relative to it; any other
    absolute path keeps its last part only, as `path/to/<last part>`.
  """
  program, *arguments = sys.argv if argv is None else argv
  spec = getattr(sys.modules.get('__main__'), '__spec__', None)
  if argv is None and spec is not None:
    module = spec.name.removesuffix('.__main__')
    words = ['python', '-m', module]
  elif program.endswith('.py'):
    words = ['python', portable_text(program)]
  else:
    words = [os.path.basename(program)]  # an installed script
  return shlex.join(words + [portable_text(word) for word in arguments])


def portable(config: Any) -> Any:
  """A config as JSON values, without absolute paths of this machine."""
  return _plain(config, 'config', paths=True)


def versions() -> dict[str, Any]:
  """What the numbers depend on besides the device.

  Returns:
    `python, jax, jaxlib, numpy, spinejax, platform` and, where they apply,
    `xla_flags`, `revision` with `dirty` (the code differs from that revision),
    and on NVIDIA hardware `driver` and `clocks`.
  """
  try:
    own = importlib.metadata.version('spinejax')
  except importlib.metadata.PackageNotFoundError:
    own = 'not installed'
  found = {
    'python': platform.python_version(),
    'jax': jax.__version__,
    'jaxlib': importlib.metadata.version('jaxlib'),
    'numpy': np.__version__,
    'spinejax': own,
    'platform': f'{platform.system()} {platform.machine()}',
  }
  if flags := os.environ.get('XLA_FLAGS'):
    found['xla_flags'] = ' '.join(portable_text(flag) for flag in flags.split())
  found |= _revision()
  if jax.default_backend() == 'gpu':
    found |= _nvidia()
  return found


def device() -> tuple[str, str]:
  """Names the hardware this process computes on.

  Returns:
    `(device, device_kind)`: a description such as `1 x NVIDIA H200`, and
    JAX's own name of the kind, which also names the tuned-kernel files.
  """
  kind = jax.devices()[0].device_kind
  if jax.default_backend() == 'cpu':
    return f'{_cpu_model()} ({os.cpu_count()} cores)', kind
  return f'{jax.device_count()} x {kind}', kind


def build(
  experiment: str,
  label: str,
  metrics: Sequence[Mapping[str, Any]],
  *,
  config: Any,
  started: str,
  finished: str | None = None,
  device_name: str | None = None,
  device_kind: str | None = None,
) -> dict[str, Any]:
  """Assembles and checks one result.

  Args:
    experiment: the folder below `results`, a plain file name.
    label: one of `LABELS`.
    metrics: flat rows; values are strings, booleans, finite numbers, None, or
      lists of these. NumPy and JAX scalars and vectors are converted.
    config: a mapping or dataclass, nested as needed; absolute paths in it are
      shortened as in `command`.
    started: the time of the start, from `now`.
    finished: the time of the end; the present if None.
    device_name: the hardware the numbers hold for; this machine's if None. A
      compiled or modelled result names the device compiled or modelled for.
    device_kind: its kind; this process's if None.

  Returns:
    The object that `write` puts in a file.

  Raises:
    ValueError: a field that the file could not hold or that says nothing,
      named with its row and key.
  """
  if (device_name is None) != (device_kind is None):
    raise ValueError('give both device_name and device_kind, or neither')
  if device_name is None:
    device_name, device_kind = device()
  result = {
    'experiment': experiment,
    'label': label,
    'device': device_name,
    'device_kind': device_kind,
    'versions': versions(),
    'command': command(),
    'config': _plain(config, 'config', paths=True),
    'started': started,
    'finished': now() if finished is None else finished,
    'metrics': [
      {key: _plain(value, _where(i, key)) for key, value in row.items()}
      for i, row in enumerate(metrics)
    ],
  }
  _check(result)
  return result


def write(
  result: Mapping[str, Any],
  name: str,
  root: str | os.PathLike[str] = 'results',
) -> pathlib.Path:
  """Writes `<root>/<experiment>/<name>.json`, whole or not at all.

  Args:
    result: what `build` returned.
    name: the file's name without its ending.
    root: the folder of all results; made if it is not there.

  Returns:
    The path written, as given by `root`.

  Raises:
    ValueError: a malformed result, or a name that is not a plain file name.
  """
  _check(result)
  if not _NAME.fullmatch(name):
    raise ValueError(f'name: {name!r} is not a plain file name')
  path = pathlib.Path(root) / result['experiment'] / f'{name}.json'
  text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
  atomic_write(path, (text + '\n').encode())
  return path


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Reads a result file and checks it.

  Raises:
    InputError: no result file, or a malformed one; the line starts with the
      path.
  """
  try:
    with open(path, encoding='utf-8') as file:
      result = json.load(file, parse_constant=_refuse_constant)
    _check(result)
  except json.JSONDecodeError as error:
    raise errors.InputError(
      f'{path}: not JSON: {error.msg} at line {error.lineno},'
      f' column {error.colno}'
    ) from None
  except UnicodeDecodeError:
    raise errors.InputError(f'{path}: not UTF-8') from None
  except ValueError as error:
    raise errors.InputError(f'{path}: {error}') from None
  except OSError as error:
    raise errors.InputError(f'{path}: {error.strerror}') from None
  return result


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
  """Puts `data` at `path` in one step, making the folders above it.

  A reader sees the old file or the new one; a failure leaves the old one.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  # In the same folder, because a rename is atomic only within one file system.
  draft = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  try:
    with open(draft, 'wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.replace(draft, path)
  except BaseException:
    draft.unlink(missing_ok=True)
    raise


def _check(result: Any) -> None:
  """Raises a one-line ValueError unless `result` is a whole result."""
  if not isinstance(result, Mapping):
    raise ValueError(f'expected an object, got {type(result).__name__}')
  for field, kind in _FIELDS.items():
    if field not in result:
      raise ValueError(f'{field} is missing')
    if not isinstance(result[field], kind):
      got = type(result[field]).__name__
      raise ValueError(f'{field}: expected {kind.__name__}, got {got}')
    if not result[field] and field != 'config':
      raise ValueError(f'{field} is empty')
  if unknown := sorted(set(result) - set(_FIELDS)):
    raise ValueError(f'unknown field {unknown[0]!r}')
  if not _NAME.fullmatch(result['experiment']):
    raise ValueError(
      f'experiment: {result["experiment"]!r} is not a plain file name'
    )
  if result['label'] not in LABELS:
    known = ', '.join(LABELS)
    raise ValueError(f'label: {result["label"]!r} is not one of {known}')
  for field in ('started', 'finished'):
    if not _UTC.fullmatch(result[field]):
      raise ValueError(
        f'{field}: {result[field]!r} is not UTC like 2026-01-31T12:00:00Z'
      )
  if result['finished'] < result['started']:
    raise ValueError(
      f'finished {result["finished"]} is before started {result["started"]}'
    )
  for field in ('versions', 'config'):
    _plain(result[field], field)
  for i, row in enumerate(result['metrics']):
    if not isinstance(row, Mapping):
      raise ValueError(
        f'metrics row {i}: expected an object, got {type(row).__name__}'
      )
    if not row:
      raise ValueError(f'metrics row {i} is empty')
    for key, value in row.items():
      if not isinstance(key, str):
        raise ValueError(f'metrics row {i}: key {key!r} is not a string')
      _check_flat(value, _where(i, key))


def _check_flat(value: Any, where: str) -> None:
  for item in value if isinstance(value, list) else [value]:
    if isinstance(item, Mapping | list):
      raise ValueError(f'{where}: rows are flat, got a nested value')
    _plain(item, where)


def _plain(value: Any, where: str, paths: bool = False) -> Any:
  """Turns a value into what JSON can hold, or says where it cannot."""
  if isinstance(value, np.generic | np.ndarray | jax.Array):
    value = np.asarray(value).tolist()
  if value is None or isinstance(value, bool | int):
    return value
  if isinstance(value, str):
    return portable_text(value) if paths else value
  if isinstance(value, float):
    if not math.isfinite(value):
      raise ValueError(f'{where}: {value} is not a JSON number')
    return value
  if isinstance(value, list | tuple):
    return [
      _plain(item, f'{where}[{i}]', paths) for i, item in enumerate(value)
    ]
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    # Shallow, because asdict would copy arrays.
    value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
  if hasattr(value, 'items'):  # a ConfigDict is not a Mapping
    return {
      str(key): _plain(item, f'{where}.{key}', paths)
      for key, item in value.items()
    }
  raise ValueError(f'{where}: {type(value).__name__} is not a JSON value')


def _where(row: int, key: str) -> str:
  return f'metrics row {row}, key {key!r}'


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is not a JSON number')


def _cpu_model() -> str:
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      for line in file:
        if line.startswith('model name'):
          return line.partition(':')[2].strip()
  except OSError:
    pass  # not Linux
  return platform.processor() or platform.machine()


def _output(*words: str, cwd: pathlib.Path | None = None) -> str | None:
  """What a program prints, or None where it is missing, fails or hangs."""
  try:
    done = subprocess.run(
      words, cwd=cwd, capture_output=True, text=True, timeout=10, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()


def _revision() -> dict[str, Any]:
  this = pathlib.Path(__file__).resolve()
  # An installed copy may lie inside somebody else's repository: only one that
  # tracks this file speaks for it.
  if _output('git', 'ls-files', '--error-unmatch', this.name, cwd=this.parent):
    revision = _output('git', 'rev-parse', 'HEAD', cwd=this.parent)
    if revision:
      root = this.parents[2]
      # Code only: the results of an earlier run do not make this one dirty.
      changes = _output('git', 'status', '--porcelain', '--', *_CODE, cwd=root)
      return {'revision': revision, 'dirty': changes != ''}
  return {}


def _nvidia() -> dict[str, str]:
  fields = 'driver_version,clocks.max.sm,clocks.max.mem,power.limit'
  answer = _output(
    'nvidia-smi', f'--query-gpu={fields}', '--format=csv,noheader'
  )
  if not answer:
    return {}
  # The cards of one host share a driver; the first speaks for them.
  first = [part.strip() for part in answer.splitlines()[0].split(',')]
  driver, core, memory, power = first
  clocks = f'at most {core} core, {memory} memory, {power}'
  return {'driver': driver, 'clocks': clocks}
