"""Kernels run on the CPU by the interpreters of their platforms."""

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


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
  with plgpu.force_gpu_interpret_mode():
    yield
