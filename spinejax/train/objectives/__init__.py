"""How each method is trained: its loss, its start and its schedule."""

from spinejax.train.objectives.base import Now, Objective
from spinejax.train.objectives.dflash import DFLASH
from spinejax.train.objectives.dspine import DSPINE

OBJECTIVES = {'dflash': DFLASH, 'dspine': DSPINE}

__all__ = ['DFLASH', 'DSPINE', 'OBJECTIVES', 'Now', 'Objective']
