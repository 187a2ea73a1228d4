"""Drafters: methods that propose a block of tokens, and their weights.

Each method is a module of its own (`dflash2`, `dspine`, ...) on
the shared `backbone`; what is here serves to load, make and keep them.
"""

from spinejax.drafters.backbone import (
  BackboneConfig,
  BackboneParams,
  random_backbone,
  tap_ids,
)
from spinejax.drafters.base import (
  Dense,
  Drafter,
  DraftModel,
  Proposal,
  Sparse,
)
from spinejax.drafters.bundle import read_bundle, write_bundle
from spinejax.drafters.checkpoint import read_checkpoint, write_checkpoint
from spinejax.drafters.dflash2 import DFlash2Config, DFlash2Params
from spinejax.drafters.domino import DominoConfig, DominoParams
from spinejax.drafters.dspark import DSparkConfig, DSparkParams
from spinejax.drafters.dspine import DSpineConfig, DSpineParams
from spinejax.drafters.files import check_destination
from spinejax.drafters.loading import (
  load_drafter,
  ngram_model,
  plain_model,
  shipped,
)

# Not the functions named like their modules: they would hide them.
__all__ = [
  'BackboneConfig',
  'BackboneParams',
  'DFlash2Config',
  'DFlash2Params',
  'DSparkConfig',
  'DSparkParams',
  'DSpineConfig',
  'DSpineParams',
  'Dense',
  'DominoConfig',
  'DominoParams',
  'DraftModel',
  'Drafter',
  'Proposal',
  'Sparse',
  'check_destination',
  'load_drafter',
  'ngram_model',
  'plain_model',
  'random_backbone',
  'read_bundle',
  'read_checkpoint',
  'shipped',
  'tap_ids',
  'write_bundle',
  'write_checkpoint',
]
