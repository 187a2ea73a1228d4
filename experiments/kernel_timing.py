"""Timing of kernels: several layers in one program."""

import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.kernel_cases import Case

# Published limits by device kind: bytes and bfloat16 operations a second.
LIMITS = {
  'NVIDIA H200': (4.8e12, 989e12),
  'NVIDIA H100 80GB HBM3': (3.35e12, 989e12),
  'TPU v5 lite': (0.819e12, 197e12),
  'TPU v5': (2.765e12, 459e12),
  'TPU v6 lite': (1.64e12, 918e12),
  'TPU7x': (7.38e12, 2307e12),
}


def roofline_us(case: Case, kind: str) -> float | None:
  """The least microseconds a layer can take; None on a kind without limits."""
  if kind not in LIMITS:
    return None
  rate, peak = LIMITS[kind]
  return 1e6 * max(case.bytes / rate, case.flops / peak)


def random(shapes: Sequence[jax.ShapeDtypeStruct], seed: int) -> tuple:
  """Normal values, scaled by fan-in where there are two axes."""
  keys = jax.random.split(jax.random.key(seed), len(shapes))
  return tuple(
    _normal(key, x.shape, x.dtype) for key, x in zip(keys, shapes, strict=True)
  )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  scale = shape[-1] ** -0.5 if len(shape) == 2 else 1.0
  return (scale * jax.random.normal(key, shape)).astype(dtype)


def stacked(case: Case, layer: Callable) -> Callable:
  """Layers one after another: (carry, shared, own of each) -> outputs.

  All outputs: a layer whose output nobody takes would not be run.
  """
  layer = jax.jit(layer)  # lowered once for all

  @jax.jit
  def run(carry, shared, own):
    outputs = []
    for weights in own:
      outputs.append(layer((carry, *shared), weights))
      carry = case.carried(outputs[-1], carry)
    return outputs

  return run


class Stack:
  """The layers of a case, with weights of their own."""

  def __init__(self, case: Case, layers: int):
    self.case, self.layers = case, layers
    carry, *self.shared = random(case.shared, 0)
    self.carry = carry
    self.own = tuple(random(case.own, i + 1) for i in range(layers))

  def program(self, layer: Callable) -> Callable[[], list[jax.Array]]:
    """All layers by `layer`, compiled.

    Args:
      layer: (carry and shared, own) -> output.
    """
    given = self.carry, self.shared, self.own
    compiled = stacked(self.case, layer).lower(*given).compile()
    return lambda: compiled(*given)

  def inputs(self) -> list[np.ndarray]:
    """Those of the first layer, as float32: NumPy's files have no bfloat16."""
    given = self.carry, *self.shared, *self.own[0]
    return [np.asarray(x.astype(jnp.float32)) for x in given]

  def one(self, layer: Callable, dtype=None) -> np.ndarray:
    """A single layer's output, computed in `dtype` where that is given."""
    given = (self.carry, *self.shared), self.own[0]
    if dtype is not None:
      given = jax.tree.map(lambda x: x.astype(dtype), given)
    return np.asarray(jax.jit(layer)(*given).astype(jnp.float32))


def outputs_key(case: Case, what: int | str) -> str:
  """The name of a case's input, by its number, or output in a file."""
  return f'{case.op}/{case.shape}/{what}'


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
  """Of norms; of choices, the share that differs."""
  if np.all(want == np.round(want)):
    return float(np.mean(got != want))
  return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def interleaved_us(
  programs: Sequence[Callable], layers: int, calls: int, repeats: int
) -> list[list[float]]:
  """Microseconds of a layer of each program, by repeat.

  They are called in turn, so that a clock that drifts drifts for all.
  """
  for program in programs:
    jax.block_until_ready(program())
  took = [[] for _ in programs]
  for _ in range(repeats):
    for times, program in zip(took, programs, strict=True):
      began = time.perf_counter()
      for _ in range(calls):
        last = program()
      jax.block_until_ready(last)
      times.append(1e6 * (time.perf_counter() - began) / (calls * layers))
  return took
