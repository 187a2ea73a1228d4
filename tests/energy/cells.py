"""Made-up cells that the tests of energy laws share."""

import numpy as np

from spinejax.energy.cells import architecture, cells_of
from spinejax.target.config import TargetConfig
from spinejax.target.presets import PRESETS

LENGTHS = (64, 512, 1024, 4096)


def rows(models: dict[str, TargetConfig], lengths=LENGTHS) -> list[dict]:
  """Every input with every output; the family is the name's first word."""
  return [
    dict(model=name, family=name.split('-')[0], input=i, output=o)
    | architecture(cfg)
    for name, cfg in models.items()
    for i in lengths
    for o in lengths
  ]


def grid(names=None, lengths=LENGTHS):
  """Cells of published shapes."""
  models = {name: PRESETS[name] for name in names or PRESETS}
  return cells_of(rows(models, lengths))


def noisy(joules_N, spread, seed=0):
  """The joules with relative errors of a standard deviation."""
  return joules_N * np.exp(
    spread * np.random.default_rng(seed).normal(size=len(joules_N))
  )
