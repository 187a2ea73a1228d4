"""Joules of chips that tell none: roofline time x assumed power.

*Modelled*, never measured: a pass takes as long as its operations or its bytes
at the chip's published limits, whichever is longer, and all that time the chip
draws one power. So all coefficients of a law fitted to it scale with the
watts, and only their ratios do not depend on what is assumed. A model may be
split over chips; evenly and for free, that changes no joule.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.compat import topologies
from spinejax.drafters.base import DraftModel
from spinejax.energy import cost
from spinejax.energy.cost import Cost
from spinejax.energy.hardware import Chip
from spinejax.target import model
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


def round_seconds(
  chip: Chip, cfg: TargetConfig, draft: DraftModel | None, batch: int,
  context: int, tokens: int = 1, dtype='bfloat16',
) -> float:  # fmt: skip
  """Roofline time of a round: the draft, then the verification of its block.

  Args:
    draft: its weights may be shapes; None is a plain step.
    tokens: that each request got from the last round, for the drafter to read.
  """
  if draft is None:
    return seconds(chip, cost.step(cfg, batch, context, dtype=dtype))
  own = cost.draft(
    draft.drafter.cfg, draft.params, cfg, batch, context, tokens, dtype
  )
  rows = draft.drafter.slots + 1
  whole = cost.step(cfg, batch, context, rows, dtype)
  return seconds(chip, own) + seconds(chip, whole)


def compiled_step(
  chip: Chip, cfg: TargetConfig, batch: int, context: int, dtype='bfloat16'
) -> Mapping[str, float | None]:
  """A plain step as the chip's own compiler counts it, beside our counts.

  *Compiled*; nothing runs, and no chip is needed but the packages of the extra
  `aot`.

  Returns:
    `flops`, `bytes` and `seconds` of the compiler, each over ours; None where
    it says nothing: its seconds may be below zero.

  Raises:
    InputError: there is no compiler for the chip.
  """

  @jax.jit
  def step(params, tokens_BQ, cache):
    out = model.forward(cfg, params, tokens_BQ, cache)
    logits_BQV = model.unembed(out.hidden_BQD, params.head_VD)
    return jnp.argmax(logits_BQV, axis=-1), out.cache

  arguments = jax.eval_shape(
    lambda: (
      model.random_params(cfg, jax.random.key(0), dtype),
      jnp.zeros((batch, 1), jnp.int32),
      model.init_cache(cfg, batch, context + 1, dtype),
    )
  )
  said = topologies.compile_for(chip.name, step, *arguments).cost_analysis()
  need = cost.step(cfg, batch, context, dtype=dtype)
  ours = {
    'flops': need.flops, 'bytes accessed': need.bytes,
    'optimal_seconds': seconds(chip, need),
  }  # fmt: skip
  flops, moved, took = (
    said[name] / own if said.get(name, 0.0) > 0 else None
    for name, own in ours.items()
  )
  return dict(flops=flops, bytes=moved, seconds=took)
