"""Runs binaries, each in a process of its own."""

import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile

import jax

ROOT = pathlib.Path(__file__).parents[2]

# Most runs here fail early, and importing takes longer than that: they are
# forked from a server that has imported these, and nothing of `experiments`.
_FORKS = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload(
  [
    'ml_collections.config_flags', 'rich.progress', 'spinejax.decode.compare',
    'spinejax.report', 'spinejax.train.evaluate', 'spinejax.train.input',
    'spinejax.train.loop', 'spinejax.train.setup',
  ]
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Done:
  """Exit status and what was printed."""

  status: int
  out: str
  err: str


def start(module: str, *flags: str) -> Done:
  """`python -m experiments.<module> ...` in the repository."""
  done = subprocess.run(
    [sys.executable, '-m', f'experiments.{module}', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  return Done(done.returncode, done.stdout, done.stderr)


def fork(
  module: str,
  *flags: str,
  programs: pathlib.Path | None = None,
  kill_at: tuple[pathlib.Path, int] | None = None,
) -> Done:
  """The same, without the time for imports.

  Args:
    programs: folder of compiled programs, for runs that share them.
    kill_at: a folder, and which of the things done to its files (see
      `_die_at`) is met by SIGKILL.
  """
  with tempfile.TemporaryDirectory() as folder:
    files = [os.path.join(folder, name) for name in ('out', 'err')]
    process = _FORKS.Process(
      target=_child, args=(module, flags, files, programs, kill_at)
    )
    process.start()
    process.join(timeout=300)
    if process.exitcode is None:
      process.kill()
    printed = [pathlib.Path(file).read_text() for file in files]
    return Done(process.exitcode, *printed)


def _child(module, flags, files, programs, kill_at):
  for standard, file in zip((1, 2), files, strict=True):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), standard)
  os.chdir(ROOT)
  if programs is not None:
    jax.config.update('jax_compilation_cache_dir', str(programs))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  if kill_at is not None:
    _die_at(*kill_at)
  sys.argv = [f'experiments/{module}.py', *flags]
  runpy.run_module(f'experiments.{module}', run_name='__main__', alter_sys=True)


def _die_at(folder: pathlib.Path, number: int) -> None:
  """SIGKILL at a number of those events below a folder: a file is opened,
  renamed or removed, or a folder is made, listed or removed."""
  kinds = ('open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir',
           'os.listdir', 'os.scandir')  # fmt: skip
  seen = itertools.count(1)

  def watch(event, arguments):
    if event in kinds and str(arguments[0]).startswith(str(folder)):
      if next(seen) == number:
        os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(watch)
