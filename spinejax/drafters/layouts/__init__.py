"""Published checkpoints, read and written: a module for each method."""

from collections.abc import Mapping
from typing import Any

from spinejax.drafters.layout import Layout
from spinejax.drafters.layouts import dflash, dflash2, dspine
from spinejax.errors import InputError

# Method -> layout; a new drafter with weights is one more entry.
LAYOUTS = {
  'dflash': dflash.LAYOUT,
  'dflash2': dflash2.LAYOUT,
  'dspine': dspine.LAYOUT,
}


def layout_of(hf: Mapping[str, Any]) -> Layout:
  """The layout that `architectures` names."""
  named = hf.get('architectures') or []
  for layout in LAYOUTS.values():
    if named in [[name] for name in layout.architectures]:
      return layout
  known = [name for layout in LAYOUTS.values() for name in layout.architectures]
  raise InputError(
    f'architectures {named} are not supported; expected one of '
    f'{", ".join(known)}'
  )
