"""Joules of chips that tell none: roofline time x assumed power.

*Modelled*, never measured: a pass takes as long as its operations or its bytes
at the chip's published limits, whichever is longer, and all that time the chip
draws one power. So all coefficients of a law fitted to it scale with the
watts, and only their ratios do not depend on what is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spinejax.energy import cost, workload
from spinejax.energy.compose import requests
from spinejax.energy.cost import Cost
from spinejax.energy.hardware import Chip
from spinejax.target.config import TargetConfig

# Chips of a model whose weights take at most this share of their memory.
_WEIGHTS = 0.5


def seconds(chip: Chip, need: Cost, chips: int = 1) -> float:
  """Roofline time of a pass, split evenly and for free over the chips."""
  return max(need.flops / chip.flops, need.bytes / chip.bandwidth) / chips


def chips_for(chip: Chip, cfg: TargetConfig) -> int:
  """Chips that a model is split over: a power of two, with room for caches."""
  chips = 1
  while 2 * cfg.parameters > _WEIGHTS * chips * chip.memory:
    chips *= 2
  return chips


def pieces(
  chip: Chip, cfg: TargetConfig, plan: Sequence[workload.Piece]
) -> list[dict[str, Any]]:
  """What steady pieces take, as `experiments.measure_energy` writes it."""
  chips = chips_for(chip, cfg)
  rows = []
  for piece in plan:
    if piece.kind == 'prefill':
      took = seconds(chip, cost.prefill(cfg, piece.batch, piece.tokens), chips)
    else:
      took = sum(
        seconds(chip, cost.step(cfg, piece.batch, piece.tokens + i), chips)
        for i in range(piece.rounds)
      )
    rows.append(dict(
      kind=piece.kind, longest=piece.tier.longest, batch=piece.batch,
      tokens=piece.tokens, context=piece.context, rounds=piece.rounds,
      seconds=took, joules=chips * chip.watts.value * took,
    ))  # fmt: skip
  return rows


def modelled_requests(
  chip: Chip, cfg: TargetConfig, lengths: Sequence[int], *, max_batch: int,
  capacities: Sequence[int], memory: float, **plan,
) -> list[dict[str, Any]]:  # fmt: skip
  """Requests of all pairs of lengths, by the same protocol as measured ones.

  Args:
    lengths: inputs and outputs.
    max_batch, capacities: as measured.
    memory: share for caches of what weights leave.
    plan: see `workload.plan`.

  Returns:
    Rows as `compose.requests` gives them, with `chips`; nothing is taken off
    for idle.
  """
  chips = chips_for(chip, cfg)
  free = memory * (chips * chip.memory - 2 * cfg.parameters)
  tiers = [
    workload.tier(cfg, capacity, max_batch, free, 'bfloat16')
    for capacity in capacities
  ]
  rows = pieces(chip, cfg, workload.plan(tiers, **plan))
  idle = dict(kind='idle', watts=0.0)
  return [row | dict(chips=chips) for row in requests([idle, *rows], lengths)]
