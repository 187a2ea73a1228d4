"""Profiles, of made-up programs and of a real round."""

import os
import re
import types

import pytest

from spinejax.decode.round import STAGES
from spinejax.decode.timing import Bench
from spinejax.report import profile
from tests.decode import toy

# As XLA prints programs, cut down: a CPU's and an NVIDIA GPU's instructions.
PROGRAM = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[2]{0})}

%fused (p.0: f32[2], p.1: f32[2]) -> f32[2] {
  %p.0 = f32[2]{0} parameter(0)
  %p.1 = f32[2]{0} parameter(1)
  %a.1 = f32[2]{0} add(%p.0, %p.1), metadata={op_name="jit(f)/one/two/add"}
  %a.2 = f32[2]{0} add(%a.1, %p.1), metadata={op_name="jit(f)/one/two/add"}
  ROOT %c.3 = f32[2]{0} copy(%a.2), metadata={op_name="jit(f)/one/copy"}
}

%dots (p.2: f32[8,2], p.3: f32[8,2]) -> f32[2] {
  %p.2 = f32[8,2]{1,0} parameter(0)
  %p.3 = f32[8,2]{1,0} parameter(1)
  ROOT %d.1 = f32[2]{0} dot(%p.2, %p.3), lhs_batch_dims={0}
}

ENTRY %main (x.1: f32[2]) -> (f32[2], /*index=1*/f32[2]) {
  %x.1 = f32[2]{0} parameter(0)
  %fusion.1 = f32[2]{0} fusion(%x.1, %x.1), kind=kLoop, calls=%fused
  %fusion.2 = f32[2]{0} fusion(%x.1, %x.1), kind=kCustom, calls=%dots
  %gemm.3 = (f32[2]{0}, s8[4]{0}) custom-call(%fusion.2, %x.1), \
custom_call_target="__cublas$gemm", metadata={op_name="jit(f)/one/dot_general"}
  %copy.4 = f32[2]{0} copy(%fusion.1)
  %einsum.5 = f32[2]{0} dot(%copy.4, %x.1), metadata={op_name="two/bq,bt->bqt"}
  %sort.6 = f32[2]{0} sort(%einsum.5), metadata={op_name="jit(f)/sort"}
  %copy.7 = f32[2]{0} copy(%sort.6)
  ROOT %tuple.8 = (f32[2]{0}, /*index=1*/f32[2]{0}) tuple(%copy.7, %sort.6)
}
"""


@pytest.mark.parametrize(
  'name, opcode, stage, kind',
  (
    # Of the stage of most of its parts; of the kind of the last.
    ('fusion.1', 'fusion', 'two', 'move'),
    # Nothing in it has a name: of the stage of what uses it.
    ('fusion.2', 'fusion', 'one', 'einsum'),
    ('gemm.3', 'custom-call', 'one', 'matmul'),
    ('copy.4', 'copy', 'two', 'move'),
    ('einsum.5', 'dot', 'two', 'einsum'),
    ('sort.6', 'sort', 'other', 'sort'),
    ('copy.7', 'copy', 'other', 'move'),
    ('tuple.8', 'tuple', 'other', 'fused'),
  ),
)
def test_operations(name, opcode, stage, kind):
  found = profile.operations(PROGRAM, ('one', 'two'))
  assert found[name] == profile.Operation(opcode, stage, kind)


def test_operations_of_stages_that_are_not_there():
  found = profile.operations(PROGRAM, ('one',))
  assert found['fusion.1'].stage == 'one'
  assert found['einsum.5'].stage == 'other'


@pytest.fixture(scope='module')
def traced(tmp_path_factory):
  """A folder with the profile of a few rounds, and their program."""
  of, draft = toy.target(), toy.dspine_model()
  bench = Bench(of.cfg, of.params, batch=2, context=40, capacity=128, rounds=8)
  folder = tmp_path_factory.mktemp('profile')
  (program,) = bench.compile([draft])
  return folder, bench.trace(program, folder)


def test_breakdown_of_a_round(traced):
  folder, program = traced
  busy = profile.breakdown(folder, program, STAGES)
  assert set(busy) <= {
    (stage, kind)
    for stage in (*STAGES, profile.OTHER)
    for kind in profile.KINDS
  }
  for stage in STAGES:
    assert sum(ms for (of, _), ms in busy.items() if of == stage) > 0
  assert busy['verify', 'matmul'] > 0 and busy['verify', 'einsum'] > 0
  # Against the loop's own event: nothing lost, nothing twice.
  loop = re.search(r'%(while[\w.]*) = ', program)[1]
  events = profile._events(folder, 'jit_run_rounds', on_host=True)
  (whole,) = (ms for name, ms in events if name == loop)
  assert 0.3 * whole < sum(busy.values()) < 1.1 * os.cpu_count() * whole


def test_what_the_program_does_not_have_is_told(traced):
  folder, program = traced
  header = program.splitlines()[0]
  busy = profile.breakdown(folder, header, STAGES)
  assert set(busy) == {(profile.OTHER, profile.OTHER)}


def test_no_profile(traced, tmp_path):
  folder, program = traced
  with pytest.raises(ValueError, match='no profile'):
    profile.breakdown(tmp_path, program, STAGES)
  with pytest.raises(ValueError, match='no operation of jit_other'):
    profile.breakdown(folder, 'HloModule jit_other, x=1', STAGES)


def test_busy_time_is_that_of_devices(traced, monkeypatch):
  """A host's events are no device's; lines that sum up streams count once."""
  folder, _ = traced
  assert profile.busy_ms(folder) is None
  event = types.SimpleNamespace(duration_ns=2_000_000)
  lines = [
    types.SimpleNamespace(name=name, events=[event] * count)
    for name, count in (('Stream #7', 3), ('Stream #9', 1), ('XLA Ops', 4))
  ]
  planes = [
    types.SimpleNamespace(name=name, lines=lines)
    for name in ('/host:CPU', '/device:GPU:0')
  ]
  monkeypatch.setattr(
    profile.jax.profiler.ProfileData, 'from_file',
    lambda path: types.SimpleNamespace(planes=planes),
  )  # fmt: skip
  assert profile.busy_ms(folder) == 8
