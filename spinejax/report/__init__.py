"""Results, statistics, tables, figures and TensorBoard.

`results` holds the functions of result files, `stats` what is computed from
counts and times, `figures` the plots; the names used in nearly every binary
are here too.
"""

from spinejax.report import figures, results, runs, stats, table, tensorboard
from spinejax.report.results import LABELS
from spinejax.report.stats import (
  acceptance,
  is_repetitive,
  speedup,
  tokens_per_round,
)
from spinejax.report.table import print_table
from spinejax.report.tensorboard import Writer

__all__ = [
  'LABELS',
  'Writer',
  'acceptance',
  'figures',
  'is_repetitive',
  'print_table',
  'results',
  'runs',
  'speedup',
  'stats',
  'table',
  'tensorboard',
  'tokens_per_round',
]
