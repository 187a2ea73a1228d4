"""Parallel drafters for speculative decoding in JAX.

import spinejax

target = spinejax.load_target('smollm2-135m')
draft = spinejax.load_drafter('smollm2-135m-dspine', target)
done = spinejax.generate(target, draft, ['What is a prime number?'])
print(done.completions[0].text, done.completions[0].tokens_per_round)
"""

from spinejax.decode.generate import Completion, Generation, generate
from spinejax.drafters.base import Drafter, DraftModel
from spinejax.drafters.loading import load_drafter, shipped
from spinejax.errors import InputError
from spinejax.sharding import make_mesh
from spinejax.target.loading import Target, load_target

__all__ = [
  'Completion',
  'DraftModel',
  'Drafter',
  'Generation',
  'InputError',
  'Target',
  'generate',
  'load_drafter',
  'load_target',
  'make_mesh',
  'shipped',
]
