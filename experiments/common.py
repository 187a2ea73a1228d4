"""What every binary shares: its config, how it starts and how it fails."""

import errno
import fcntl
import logging
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from spinejax.errors import InputError
from spinejax.prompts import PromptSet, by_name

_CONFIG = config_flags.DEFINE_config_file('config', lock_config=True)
# What the machine refuses, and no code could have done better.
_OUTSIDE = (
  errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO,
)  # fmt: skip
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,99}')


def run(main: Callable[[ConfigDict], None]) -> None:
  """Runs `main(config)`; bad input is one line on stderr and exit status 2.

  So is a disk that is full or may not be touched, whatever was doing it.
  """

  def guarded(argv: list[str]) -> None:
    try:
      if len(argv) > 1:
        raise InputError(f'unexpected argument {argv[1]!r}')
      main(_config())
    except InputError as error:
      _fail(error)
    except OSError as error:
      if error.errno not in _OUTSIDE:
        raise
      place = [str(error.filename)] if error.filename else []
      _fail(': '.join([*place, error.strerror]))

  # At the level of absl's log, JAX tells which backends it did not find.
  logging.getLogger('jax').setLevel(logging.WARNING)
  app.run(guarded, flags_parser=_parse)


def dtype(name: str) -> jnp.dtype:
  """The dtype of weights and activations that a config names."""
  if name not in ('float32', 'bfloat16'):
    raise InputError(f'dtype = {name!r}, expected float32 or bfloat16')
  return jnp.dtype(name)


def positive(config: ConfigDict, *fields: str) -> None:
  """Refuses fields that are not at least 1."""
  for field in fields:
    if config[field] < 1:
      raise InputError(f'{field} = {config[field]}, expected at least 1')


def folder(path: str) -> pathlib.Path:
  """A folder to write to, made here so that a bad path fails early."""
  try:
    os.makedirs(path, exist_ok=True)
    writable = os.access(path, os.W_OK)
  except OSError as error:
    raise InputError(f'{path}: {error.strerror}') from None
  if not writable:
    raise InputError(f'{path}: not writable')
  return pathlib.Path(path)


def hold(path: pathlib.Path, wait: bool = False) -> int:
  """Keeps other processes from a folder until this one ends.

  Args:
    wait: for a process that has it; else that is refused.

  Returns:
    A handle; to close it lets the folder go before the end.
  """
  handle = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
  except BlockingIOError:
    raise InputError(
      f'{path}: another process is writing there; wait for its end, or choose '
      'another folder'
    ) from None
  except OSError as error:  # a file system without locks
    raise InputError(f'{path}: cannot be locked ({error.strerror})') from None
  return handle


def there(config: ConfigDict, field: str, binary: str, more: str = '') -> None:
  """Refuses a file that is not there, and says what makes it."""
  if not pathlib.Path(config[field]).exists():
    hint = f'experiments.{binary} makes it' + (f', {more}' if more else '')
    raise InputError(f'{field} = {config[field]!r} is not there: {hint}')


def results(config: ConfigDict, experiment: str) -> pathlib.Path:
  """The folder of an experiment's result files."""
  if not config.results:
    raise InputError("results = '', expected a folder")
  return folder(f'{config.results}/{experiment}')


def logs(config: ConfigDict, experiment: str, name: str = '') -> pathlib.Path:
  """The folder of what TensorBoard shows of a run: see `report.runs`.

  Args:
    name: of the run, where it is not `config.name`.
  """
  return folder(results(config, experiment) / (name or config.name))


def file_name(field: str, name: str) -> str:
  """A name that files are called by."""
  if not _NAME.fullmatch(name):
    raise InputError(f'{field} = {name!r} is not a plain file name')
  return name


def prompt_sets(config: ConfigDict) -> list[PromptSet]:
  """The prompts that a config names: rows and curves are told apart by set."""
  sets = [by_name(x, config.limit or None) for x in config.prompts.split(',')]
  distinct('prompts', [one.name for one in sets])
  return sets


def distinct(field: str, names: Sequence[str]) -> None:
  """Refuses names that results could not be told apart by."""
  for name in names:
    if names.count(name) > 1:
      raise InputError(f'{field}: two are called {name!r}')


def _config() -> ConfigDict:
  config = _CONFIG.value
  if config is None:
    raise InputError('--config is missing, expected a file of configs/')
  try:
    config.lock()
  except OSError as error:  # kept by ml_collections until the first use
    raise InputError(f'--config: {_lines(error)[-1]}') from None
  return config


def _parse(argv: list[str]) -> list[str]:
  """Parses flags; what is wrong with them is told in one line too."""
  try:
    return flags.FLAGS(argv)
  except AttributeError as error:
    inner = error.args[0]  # the KeyError of ml_collections
    field = inner.args[0] if isinstance(inner, KeyError) else inner
    _fail(f'the config has no field {" ".join(_lines(field))}')
  except (flags.Error, TypeError, ValueError) as error:
    lines = _lines(error)  # between the first and the last is a traceback
    _fail(' '.join(dict.fromkeys((lines[0], lines[-1]))))


def _lines(text: object) -> list[str]:
  return [line.strip() for line in str(text).splitlines() if line.strip()]


def _fail(error: object) -> None:
  print(f'error: {error}', file=sys.stderr)
  sys.exit(2)
