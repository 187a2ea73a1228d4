"""Kernels at their named shapes, each beside XLA's fusion of the reference.

What is timed is a number of layers in one program: what a layer computes is
handed to the next one, and each has weights of its own, together more than a
cache holds.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.block_attention import config as attention_config
from pallas_kernels.block_attention import gpu as attention_gpu
from pallas_kernels.block_attention import shapes as attention_shapes
from pallas_kernels.block_attention import tpu as attention_tpu
from pallas_kernels.injection import config as injection_config
from pallas_kernels.injection import gpu as injection_gpu
from pallas_kernels.injection import reference as injection_reference
from pallas_kernels.injection import shapes as injection_shapes
from pallas_kernels.injection import tpu as injection_tpu
from pallas_kernels.transition import config as transition_config
from pallas_kernels.transition import gpu as transition_gpu
from pallas_kernels.transition import reference as transition_reference
from pallas_kernels.transition import shapes as transition_shapes
from pallas_kernels.transition import tpu as transition_tpu
from spinejax.drafters.attention import attend_parts
from spinejax.target import layers as nn

BF16, F32 = jnp.bfloat16, jnp.float32
_CACHED = 60 * 2**20  # bytes of the largest cache, an H200's
_MOST_LAYERS = 48

Layer = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Case:
  """One operation at one shape.

  Attributes:
    op, shape: their names.
    rows: query rows of all requests.
    key: of the tuned config.
    shared, own: shapes and dtypes of what the layers share, the carry first,
      and of what each has for itself.
    kernels: by platform, (carry and shared, own, config) -> output.
    reference: (carry and shared, own) -> output.
    carried: (output, carry) -> the next layer's carry.
    chosen, candidates: configs by platform: that in use, and those worth
      trying.
    bytes, flops: that a layer cannot do without.
  """

  op: str
  shape: str
  rows: int
  key: str
  shared: tuple
  own: tuple
  kernels: dict[str, Callable]
  reference: Callable
  carried: Callable
  chosen: dict[str, Any]
  candidates: dict[str, list]
  bytes: int
  flops: int

  def layers(self) -> int:
    """As many as have twice the cache of weights, and at least four."""
    size = sum(x.size * x.dtype.itemsize for x in self.own)
    return max(4, min(_MOST_LAYERS, -(-2 * _CACHED // max(1, size))))


def array(dtype, *shape) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


def _handed_on(output, carry):
  """The same carry, but not before the output is there."""
  return lax.optimization_barrier((carry, output))[0]


def injection(name: str, shape) -> Case:
  B, K, D, R, M = shape
  rows, weights = B * K, R * D + 3 * M * R + D * M
  at = rows, D, R, M
  on_tpu = injection_config.tpu_config(*at)
  return Case(
    'injection', name, rows, injection_config.key(*at),
    shared=(array(BF16, B, K, D), array(BF16, B, R)),
    own=(
      array(BF16, R, D), *[array(BF16, M, R)] * 3, array(BF16, M),
      array(BF16, D, M),
    ),
    kernels=dict(
      cuda=lambda x, own, c: injection_gpu.injection(*x, *own, c),
      tpu=lambda x, own, c: injection_tpu.injection(*x, *own, c),
    ),
    reference=lambda x, own: injection_reference.injection(
      *x, *own, dense=nn.dense
    ),
    carried=lambda out, carry: out,
    chosen=dict(cuda=injection_config.config_for(*at), tpu=on_tpu),
    candidates=dict(cuda=injection_config.candidates(*at), tpu=[on_tpu]),
    bytes=2 * (weights + M + 2 * rows * D + B * R),
    flops=2 * rows * weights,
  )  # fmt: skip


def transition(name: str, shape) -> Case:
  B, S, N, M = shape
  vectors = array(F32, B, S, N, M), array(F32, B, S, N)

  def body(module, x, own, *config):
    return module.transition(*own, *x, None, None, *config)[0]

  def reference(x, own):
    return transition_reference.transition(*own, *x)[0]

  return Case(
    'transition', name, B * S, transition_config.key(*shape),
    shared=(array(F32, B, S),),
    own=(vectors[0], vectors[0], vectors[1]),
    kernels=dict(
      cuda=functools.partial(body, transition_gpu),
      tpu=lambda x, own, c: body(transition_tpu, x, own),
    ),
    reference=reference,
    carried=_handed_on,
    chosen=dict(cuda=transition_config.config_for(*shape), tpu=None),
    candidates=dict(cuda=transition_config.candidates(), tpu=[None]),
    bytes=4 * (2 * B * S * N * M + B * S * (N + 2)),
    flops=2 * B * S * N * N * M,
  )  # fmt: skip


def block_attention(name: str, shape) -> Case:
  B, Q, G, U, C, T = (
    shape.requests, shape.rows, shape.groups, shape.heads, shape.head_dim,
    shape.capacity,
  )  # fmt: skip
  at = B, Q, G, U, C, T
  length_B = jnp.array(shape.lengths, jnp.int32)
  settings = dict(eps=1e-6, causal=True)
  position = length_B[:, None] + jnp.arange(Q)
  rope = nn.rotary(position, C, 1e6)

  def kernel(x, own, config):
    del config
    cos, sin = (y.reshape(B, Q, -1) for y in rope)
    return attention_gpu.block_attention(
      x[0].reshape(B, Q, -1), *own, length_B, cos, sin, None, append=False,
      **settings,
    )[0]  # fmt: skip

  def on_tpu(x, own, config):
    return attention_tpu.block_attention(
      *x, *own, length_B, rope, None, append=False, config=config, **settings
    )[0]

  def reference(x, own):
    q, k, v = (y[:, None] for y in nn.split_qkv(x[0], rope, None, 1e-6))
    seen_BAKT = jnp.arange(T) < jnp.broadcast_to(
      length_B[:, None, None, None], (B, 1, Q, 1)
    )
    return attend_parts(q, k, v, *own, seen_BAKT, jnp.tri(Q, dtype=bool))[:, 0]

  context = sum(shape.lengths)
  return Case(
    'block_attention', name, B * Q, attention_config.key(*at),
    shared=(array(BF16, B, Q, G, U + 2, C),),
    own=(array(BF16, B, G, T, C),) * 2,
    kernels=dict(cuda=kernel, tpu=on_tpu),
    reference=reference,
    carried=_handed_on,
    chosen=dict(cuda=None, tpu=attention_config.tpu_config(*at)),
    candidates=dict(
      cuda=[None],  # it has no choice to make
      tpu=[attention_config.TpuConfig(tile) for tile in (128, 256, 512)],
    ),
    bytes=2 * (2 * context * G * C + B * Q * G * C * (2 * U + 2)),
    flops=4 * context * Q * G * U * C,
  )  # fmt: skip


_MAKERS = dict(
  injection=(injection, injection_shapes),
  transition=(transition, transition_shapes),
  block_attention=(block_attention, attention_shapes),
)
OPS = tuple(_MAKERS)


def cases(op: str, toy: bool = False) -> Iterator[Case]:
  """An operation's named shapes; tiny ones for the tests."""
  make, shapes = _MAKERS[op]
  for name, shape in (shapes.TOY if toy else shapes.SHAPES).items():
    yield make(name, shape)


@contextlib.contextmanager
def platform_of(case: Case) -> Iterator[str | None]:
  """The platform whose kernel runs here, None if none does; on a CPU the TPU's,
  interpreted."""
  backend = jax.default_backend()
  if backend != 'cpu':
    name = dict(gpu='cuda').get(backend, backend)
    yield name if name in case.kernels else None
  else:
    with pltpu.force_tpu_interpret_mode():
      yield 'tpu'
