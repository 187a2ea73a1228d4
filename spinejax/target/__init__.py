"""The frozen model that verifies: shape, weights, forward pass, tokenizer."""

from spinejax.target.config import RopeScaling, TargetConfig
from spinejax.target.loading import (
  Target,
  head_hash,
  load_target,
  target_config,
)
from spinejax.target.memory import check_memory, memory_table
from spinejax.target.model import (
  Forward,
  KVCache,
  TargetParams,
  forward,
  init_cache,
  random_params,
  unembed,
)
from spinejax.target.presets import PRESETS, preset
from spinejax.target.tokenizer import Tokenizer

__all__ = [
  'Forward',
  'KVCache',
  'PRESETS',
  'RopeScaling',
  'Target',
  'TargetConfig',
  'TargetParams',
  'Tokenizer',
  'check_memory',
  'forward',
  'head_hash',
  'init_cache',
  'load_target',
  'memory_table',
  'preset',
  'random_params',
  'target_config',
  'unembed',
]
