"""Mosaic GPU calls whose form differs between the jax versions in use."""

import inspect

from jax.experimental.pallas import mosaic_gpu as plgpu

_INDEX = ((),) if 'idx' in inspect.signature(plgpu.load).parameters else ()


def load(ref, layout, optimized: bool = True):
  """A whole array of shared memory in registers of `layout`.

  Args:
    optimized: refuse an access with bank conflicts.
  """
  return plgpu.load(ref, *_INDEX, layout=layout, optimized=optimized)
