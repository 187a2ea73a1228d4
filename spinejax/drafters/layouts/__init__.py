"""Published checkpoints, read and written: a module for each method."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.layout import Layout
from spinejax.drafters.layouts import dflash, dflash2, domino, dspark, dspine
from spinejax.drafters.settings import section
from spinejax.errors import InputError

# Method -> layout; a new drafter with weights is one more entry.
LAYOUTS = {
  'dflash': dflash.LAYOUT,
  'dflash2': dflash2.LAYOUT,
  'domino': domino.LAYOUT,
  'dspark': dspark.LAYOUT,
  'dspine': dspine.LAYOUT,
}


def layout_of(hf: Mapping[str, Any]) -> Layout:
  """The layout that `architectures` names, or else `projector_type`: engines
  serve heads of several kinds as a DFlash."""
  named = hf.get('architectures') or []
  method = next(
    (
      method
      for method, layout in LAYOUTS.items()
      if named in [[name] for name in layout.architectures]
    ),
    None,
  )
  if method is None:
    known = [x for layout in LAYOUTS.values() for x in layout.architectures]
    raise InputError(
      f'architectures {named} are not supported; expected one of '
      f'{", ".join(known)}'
    )
  projector = section(hf, 'dflash_config').get('projector_type')
  if method == 'dflash' and projector is not None:
    if projector not in LAYOUTS:
      raise InputError(
        f'projector_type = {projector!r}, expected one of {", ".join(LAYOUTS)}'
      )
    method = projector
  if method == 'dspark' and dspark.markov_rank(hf) == 0:
    method = 'dflash'
  return LAYOUTS[method]
