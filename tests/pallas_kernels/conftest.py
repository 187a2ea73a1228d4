"""Kernels run on the CPU by the interpreters of their platforms, which raise
where two accesses race and fill what nothing was written to with NaN."""

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu


@pytest.fixture
def interpreted(monkeypatch):
  """Runs Mosaic GPU kernels on the CPU.

  Its interpreter takes the left side of a product from shared memory only, and
  runs one kernel after another.
  """
  for name in ('griddepcontrol_wait', 'griddepcontrol_launch_dependents'):
    monkeypatch.setattr(plgpu, name, lambda: None)
  wgmma = plgpu.wgmma

  def from_shared(acc, left, right):
    if not isinstance(left, jax.Array):
      return wgmma(acc, left, right)

    def body(ref):
      ref[...] = left
      wgmma(acc, ref, right)

    return pl.run_scoped(body, plgpu.SMEM(left.shape, left.dtype))

  monkeypatch.setattr(plgpu, 'wgmma', from_shared)
  checks = plgpu.InterpretGPUParams(
    detect_races=True, uninitialized_memory='nan'
  )
  with plgpu.force_gpu_interpret_mode(checks):
    yield


@pytest.fixture
def interpreted_tpu():
  """Runs TPU kernels on the CPU."""
  checks = pltpu.InterpretParams(
    detect_races=True,
    uninitialized_memory='nan',
    out_of_bounds_reads='raise',
  )
  with pltpu.force_tpu_interpret_mode(checks):
    yield
