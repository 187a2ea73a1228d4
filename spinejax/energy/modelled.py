"""Joules of chips that tell none: roofline time x assumed power.

*Modelled*, never measured: a pass takes as long as its operations or its bytes
at the chip's published limits, whichever is longer, and all that time the chip
draws one power. So all coefficients of a law fitted to it scale with the
watts, and only their ratios do not depend on what is assumed. A model may be
split over chips; evenly and for free, that changes no joule.
"""

from __future__ import annotations

import numpy as np

from spinejax.energy import cost
from spinejax.energy.cost import Cost
from spinejax.energy.hardware import Chip
from spinejax.target.config import TargetConfig

# Contexts at which an answer's steps are evaluated.
_POINTS = 33


def seconds(chip: Chip, need: Cost) -> float:
  """Roofline time of a pass on one chip."""
  return max(need.flops / chip.flops, need.bytes / chip.bandwidth)


def request_joules(
  chip: Chip, cfg: TargetConfig, input: int, output: int, *, batch: int,
  prompt_tokens: int, dtype='bfloat16',
) -> float:  # fmt: skip
  """Joules of a request in a batch of requests of the same lengths.

  Args:
    batch: decoded at once.
    prompt_tokens: that are read at once, about.
  """
  prompts = max(1, prompt_tokens // input)
  reading = seconds(chip, cost.prefill(cfg, prompts, input, dtype=dtype))
  # Time is linear in the context but for where bytes overtake operations.
  at = np.unique(np.linspace(0, output - 1, _POINTS).round().astype(int))
  steps = [
    seconds(chip, cost.step(cfg, batch, input + int(t), dtype=dtype))
    for t in at
  ]
  decoding = np.interp(np.arange(output), at, steps).sum()
  return chip.watts.value * float(reading / prompts + decoding / batch)
