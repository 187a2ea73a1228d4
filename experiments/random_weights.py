"""Targets and drafters of any shape with random weights, for their time."""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.decode import timing
from spinejax.drafters.base import DraftModel
from spinejax.drafters.dspine import DSpineConfig
from spinejax.target.config import TargetConfig
from spinejax.target.model import TargetParams, random_params
from spinejax.train.objectives import OBJECTIVES

DRAFTERS = ('dspine', 'dflash2', 'dflash')


def random_target(cfg: TargetConfig, dtype) -> TargetParams:
  """Random weights, made on the device array by array."""
  shapes = jax.eval_shape(lambda: random_params(cfg, jax.random.key(0)))
  if not cfg.tied:
    return timing.noise(shapes, dtype)
  params = timing.noise(dataclasses.replace(shapes, head_VD=None), dtype)
  return dataclasses.replace(params, head_VD=params.embed_VD)


def drafter_shapes(name: str, cfg: DSpineConfig) -> DraftModel:
  """A drafter of that method and shape, with shapes in the place of weights."""
  objective = OBJECTIVES[name]
  if name != 'dspine':
    shape = {
      field.name: getattr(cfg, field.name)
      for field in dataclasses.fields(objective.config)
      if hasattr(cfg, field.name)
    }
    # As published: every slot sees the whole block.
    cfg = objective.config(**shape | dict(causal=False))

  def params():
    rank = getattr(cfg, 'rank', 1)
    axes_DR, codes_VR = (
      jnp.zeros((cfg.width, rank)),
      jnp.zeros((cfg.vocab, rank)),
    )
    weights = objective.init(cfg, jax.random.key(0), axes_DR)
    return objective.params(weights, codes_VR)

  return DraftModel(objective.drafter(cfg), jax.eval_shape(params))


def random_drafter(name: str, cfg: DSpineConfig, dtype) -> DraftModel:
  """A drafter of that method and shape with random weights."""
  draft = drafter_shapes(name, cfg)
  weights = timing.noise(draft.params, dtype, seed=1)
  return dataclasses.replace(draft, params=weights)
