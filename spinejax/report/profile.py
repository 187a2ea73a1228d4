"""Where the time of a compiled program goes, from a profile of it.

A profile names operations of the compiled program. In which named scope of
the Python program they stood, only the compiled program's text tells.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Sequence

import jax

OTHER = 'other'
# Matrix products; those that an einsum names by its letters; and so on. How
# XLA batches a product says nothing: it splits long sums into batches.
KINDS = ('matmul', 'einsum', 'sort', 'move', 'fused', OTHER)

_COMPUTATION = re.compile(r'(?:ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?%?([\w.\-]+) = .*? ([a-z][\w\-]*)\(')
_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r'%([\w.\-]+)')
_CALLED = re.compile(r'(?:calls|called_computations)=\{?%?([\w.\-]+)')
_MATMUL = re.compile(
  r' (?:dot|convolution)\(|custom_call_target="__cu(?:blas|dnn)'
)
# XLA:CPU may lose the name.
_EINSUM = re.compile(r'op_name="[^"]*->|lhs_batch_dims=(?!.*op_name=)')
_SORT = re.compile(
  r' (?:sort|topk)\(|custom_call_target="[^"]*(?:TopK|[sS]ort)'
)
# Opcodes, of the root where several are fused, that compute nothing.
_MOVES = (
  'bitcast', 'concatenate', 'copy', 'dynamic-slice', 'dynamic-update-slice',
  'gather', 'pad', 'scatter', 'slice', 'transpose',
)  # fmt: skip
# On a host their events contain those of what they call.
_CONTAINERS = ('call', 'conditional', 'while')


@dataclasses.dataclass(frozen=True)
class Operation:
  """An instruction of a compiled program: opcode, named scope, and kind."""

  opcode: str
  stage: str
  kind: str


@dataclasses.dataclass(frozen=True)
class _Line:
  root: str | None
  name: str
  opcode: str
  text: str


def legible() -> dict[str, str]:
  """Compiler options of programs that a profile can be read of."""
  if jax.default_backend() != 'gpu':
    return {}
  # XLA replays most of a program as one recorded graph, in which a profiler
  # cannot tell which kernel belongs to which operation.
  return {'xla_gpu_enable_command_buffer': ''}


def record(folder: str | os.PathLike[str], run: Callable[[], object]) -> None:
  """Profiles a call, and the wait for what it gives, into a folder."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  with jax.profiler.trace(folder, profiler_options=options):
    jax.block_until_ready(run())


def breakdown(
  folder: str | os.PathLike[str], program: str, stages: Sequence[str]
) -> dict[tuple[str, str], float]:
  """Busy time of a device by stage and kind of operation.

  Args:
    folder: what `jax.profiler.trace` wrote to, in this process; the latest
      profile is read.
    program: the compiled program, `compiled.as_text()`.
    stages: named scopes, as for `operations`.

  Returns:
    Milliseconds by (stage, kind). All that the profile has of the program is
    in: what cannot be told is of stage or kind `OTHER`. Operations that run
    at the same time each count, so the sum may exceed the time that passed.

  Raises:
    ValueError: there is no profile, or nothing of this program in it.
  """
  known = operations(program, stages)
  module = program.split(maxsplit=2)[1].rstrip(',')
  on_host = jax.default_backend() == 'cpu'
  unknown = Operation('', OTHER, OTHER)
  busy = collections.Counter()
  for name, ms in _events(folder, module, on_host):
    found = known.get(name, unknown)
    if not (on_host and found.opcode in _CONTAINERS):
      busy[found.stage, found.kind] += ms
  if not busy:
    raise ValueError(f'{folder}: the profile has no operation of {module}')
  return dict(busy)


def busy_ms(folder: str | os.PathLike[str]) -> float | None:
  """Milliseconds that operations took on devices in the latest profile.

  Those at the same time each count. None where only a host was profiled.

  Raises:
    ValueError: there is no profile.
  """
  events = list(_raw_events(folder, on_host=False))
  return sum(e.duration_ns for e in events) / 1e6 if events else None


def operations(program: str, stages: Sequence[str]) -> dict[str, Operation]:
  """The instructions of a compiled program, by name.

  An instruction is of the innermost stage around it. XLA makes some without a
  name of their origin: a fusion is then of the stage of most of its parts,
  any other one of that of the first to use its result.

  Args:
    program: its text.
    stages: named scopes.
  """
  computations = collections.defaultdict(list)
  inside = ''
  for line in program.splitlines():
    if header := _COMPUTATION.match(line):
      inside = header[1]
    elif found := _INSTRUCTION.match(line):
      computations[inside].append(_Line(*found.groups(), line))
  found = {}
  for body in list(computations.values()):
    by_user = {}
    for line in reversed(body):  # an instruction precedes its users
      called = _CALLED.search(line.text)
      parts = computations.get(called[1], []) if called else []
      stage = _stage(line, parts, stages) or by_user.get(line.name, OTHER)
      found[line.name] = Operation(line.opcode, stage, _kind(line, parts))
      if stage != OTHER:
        operands = _OPERAND.findall(line.text.split(' = ', 1)[1])
        by_user |= dict.fromkeys(operands, stage)
  return found


def _stage(
  line: _Line, parts: Sequence[_Line], stages: Sequence[str]
) -> str | None:
  """The stage that an instruction or its parts name; None without a name."""
  own = _named_stage(line, stages)
  if own in (None, OTHER):
    within = collections.Counter(_named_stage(x, stages) for x in parts)
    del within[None], within[OTHER]
    if within:
      return within.most_common(1)[0][0]
  return own


def _named_stage(line: _Line, stages: Sequence[str]) -> str | None:
  name = _NAME.search(line.text)
  if name is None:
    return None
  scopes = (x for x in reversed(name[1].split('/')) if x in stages)
  return next(scopes, OTHER)


def _kind(line: _Line, parts: Sequence[_Line]) -> str:
  lines = [line, *parts]
  products = [x.text for x in lines if _MATMUL.search(x.text)]
  if products:
    return 'einsum' if any(map(_EINSUM.search, products)) else 'matmul'
  if any(_SORT.search(x.text) for x in lines):
    return 'sort'
  root = next((x.opcode for x in parts if x.root), line.opcode)
  moves = root.removesuffix('-start').removesuffix('-done') in _MOVES
  return 'move' if moves else 'fused'


def _events(
  folder: str | os.PathLike[str], module: str, on_host: bool
) -> list[tuple[str, float]]:
  """(instruction, milliseconds) of the latest profile.

  A device has its own events, and its host has events of launching them; on a
  CPU those of the host are all there are.
  """
  events = []
  for event in _raw_events(folder, on_host):
    stats = dict(event.stats)
    of = str(stats.get('hlo_module', module))
    if 'hlo_op' in stats and of.split('(')[0] == module:
      events.append((str(stats['hlo_op']), event.duration_ns / 1e6))
  return events


def _raw_events(folder: str | os.PathLike[str], on_host: bool):
  """The events of the latest profile, of the host or of the devices."""
  files = list(pathlib.Path(folder).rglob('*.xplane.pb'))
  if not files:
    raise ValueError(f'{folder}: no profile')
  latest = max(files, key=lambda file: file.stat().st_mtime_ns)
  with warnings.catch_warnings():
    # Python 3.12 on has something to say of how jaxlib declares its types.
    warnings.filterwarnings('ignore', 'builtin type', DeprecationWarning)
    data = jax.profiler.ProfileData.from_file(str(latest))
    for plane in data.planes:
      if plane.name.startswith('/host') != on_host:
        continue
      lines = list(plane.lines)
      # Beside the streams of a GPU there may be lines that sum them up.
      lines = [x for x in lines if x.name.startswith('Stream')] or lines
      for line in lines:
        yield from line.events
