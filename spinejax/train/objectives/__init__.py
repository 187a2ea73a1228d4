"""How each method is trained: its loss, its start and its schedule."""

from spinejax.train.objectives.base import Now, Objective
from spinejax.train.objectives.dflash import DFLASH
from spinejax.train.objectives.dflash2 import DFLASH2
from spinejax.train.objectives.domino import DOMINO
from spinejax.train.objectives.dspark import DSPARK
from spinejax.train.objectives.dspine import DSPINE

OBJECTIVES = {
  'dflash': DFLASH,
  'dflash2': DFLASH2,
  'domino': DOMINO,
  'dspark': DSPARK,
  'dspine': DSPINE,
}

__all__ = ['OBJECTIVES', 'Now', 'Objective']
