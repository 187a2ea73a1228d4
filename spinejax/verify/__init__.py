"""Acceptance rules and sampling laws: exact for any drafter.

Names resolve on first use: drafters draw with `verify.sampling`, and
`verify.chain` judges what drafters propose, so loading both here would be a
cycle.
"""

import importlib

_HOMES = {
  'Sampling': 'sampling',
  'Stream': 'sampling',
  'Verdict': 'chain',
  'law': 'sampling',
  'round_keys': 'sampling',
  'verify': 'chain',
}

__all__ = list(_HOMES)


def __getattr__(name: str):
  """The public name `name`, from the module that defines it."""
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'{__name__}.{_HOMES[name]}')
  return getattr(module, name)
