"""Published limits of chips, and what is assumed where nothing is published."""

from __future__ import annotations

import dataclasses

from spinejax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Watts:
  """Power of a busy chip, and the band in which it may lie.

  Attributes:
    value, low, high: watts.
    basis: 'published' or 'assumed'.
  """

  value: float
  low: float
  high: float
  basis: str


@dataclasses.dataclass(frozen=True)
class Chip:
  """Limits of one chip.

  Attributes:
    flops: bfloat16 products a second, dense.
    bandwidth: bytes a second from its memory.
    memory: bytes of it.
    watts: power while busy.
  """

  name: str
  flops: float
  bandwidth: float
  memory: float
  watts: Watts


# NVIDIA's data sheets of H100 and H200 (SXM): 989 TFLOP/s of bfloat16 without
# sparsity, and the power that can be set, 700 W at most.
_SXM = Watts(700, 400, 700, 'published')

# Cloud TPU's pages of each version give operations, bandwidth and memory.
# Power is published for v4 only (192 W at most; 90 and 170 W are recalled as
# its least and mean, unverified). The others are assumptions: v5e is drawn
# between a half of v4 and v4, v5p between v4 and twice a v4 for its 1.7-fold
# operations and 2.3-fold bandwidth; v6e follows from v5e, since Google states
# 67 % more operations per watt: 918 / 197 / 1.67 = 2.8 times its power.
CHIPS = {
  chip.name: chip
  for chip in (
    Chip('h100', 989e12, 3.35e12, 80e9, _SXM),
    Chip('h200', 989e12, 4.8e12, 141e9, _SXM),
    Chip('v4', 275e12, 1.2e12, 32e9, Watts(170, 90, 192, 'published')),
    Chip('v5e', 197e12, 0.819e12, 16e9, Watts(140, 90, 200, 'assumed')),
    Chip('v5p', 459e12, 2.765e12, 95e9, Watts(350, 200, 500, 'assumed')),
    Chip('v6e', 918e12, 1.64e12, 32e9, Watts(390, 250, 560, 'assumed')),
  )
}
TPUS = ('v4', 'v5e', 'v5p', 'v6e')

# How JAX names their kinds.
_KINDS = {
  'NVIDIA H100': 'h100', 'NVIDIA H200': 'h200', 'TPU v4': 'v4',
  'TPU v5 lite': 'v5e', 'TPU v5e': 'v5e', 'TPU v5p': 'v5p', 'TPU v5': 'v5p',
  'TPU v6 lite': 'v6e', 'TPU v6e': 'v6e',
}  # fmt: skip


def of_device(device_kind: str) -> Chip | None:
  """The chip that JAX calls so (`Device.device_kind`), if it is known here."""
  for kind, name in _KINDS.items():
    if device_kind == kind or device_kind.startswith(f'{kind} 80GB'):
      return CHIPS[name]
  return None


def chip(name: str) -> Chip:
  """The chip called `name`.

  Raises:
    InputError: no such chip; the message lists those there are.
  """
  if name not in CHIPS:
    raise InputError(f'chip {name!r}, expected one of {", ".join(CHIPS)}')
  return CHIPS[name]
