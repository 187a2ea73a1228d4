"""A drafter with its weights, ready to decode with."""

import dataclasses

from spinejax.drafters.base import Drafter
from spinejax.drafters.ngram import ngram
from spinejax.drafters.plain import plain
from spinejax.errors import InputError


@dataclasses.dataclass(frozen=True)
class DraftModel:
  """A drafter, its weights (None if it has none), and what it was made for.

  Attributes:
    drafter: the method and its config.
    params: weights on the device.
    head_hash: the target head that the weights fit, or None for any.
  """

  drafter: Drafter
  params: object = None
  head_hash: str | None = None

  def check(self, target) -> None:
    """Refuses a target that the drafter was not trained for.

    Raises:
      InputError: vocabulary, width, taps or head differ.
    """
    cfg, of = self.drafter.cfg, target.cfg
    for field in ('vocab', 'width'):
      if getattr(cfg, field, getattr(of, field)) != getattr(of, field):
        raise InputError(
          f'drafter {self.drafter.name} was made for a target of {field} '
          f'{getattr(cfg, field)}; {target.name} has {getattr(of, field)}'
        )
    if any(not -1 <= t < of.layers - 1 for t in self.drafter.taps):
      raise InputError(
        f'drafter {self.drafter.name} taps layers {self.drafter.taps}; '
        f'{target.name} has outputs 0..{of.layers - 2} before its last'
      )
    if self.head_hash is not None and self.head_hash != target.head_hash:
      raise InputError(
        f'drafter {self.drafter.name} was trained for another target: its '
        f'head hash is {self.head_hash}, that of {target.name} is '
        f'{target.head_hash}'
      )


def plain_model(slots: int = 0) -> DraftModel:
  """Plain decoding."""
  return DraftModel(plain(slots))


def ngram_model(slots: int = 15, longest: int = 3) -> DraftModel:
  """Prompt lookup."""
  return DraftModel(ngram(slots, longest))
