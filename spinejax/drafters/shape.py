"""Shapes for drafters that are not there yet."""

import dataclasses

from spinejax.drafters.backbone import BackboneConfig, tap_ids
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig


def drafter_config(
  config: type,
  of: TargetConfig,
  *,
  layers: int,
  block: int,
  mask_id: int,
  taps: int,
  **own,
) -> BackboneConfig:
  """A `config` whose draft layers have the target's own proportions.

  Args:
    config: `BackboneConfig` or a method's own.
    of: the target.
    taps: number of evenly spaced target layers whose outputs are read.
    own: the method's fields, and those of the backbone that shall differ.

  Raises:
    InputError: a size is not positive or does not fit the target, or there is
      no such field.
  """
  for field, size in dict(layers=layers, taps=taps).items():
    if size < 1:
      raise InputError(f'{field} = {size}, expected at least 1')
  known = {field.name for field in dataclasses.fields(config)}
  for field in own:
    if field not in known:
      raise InputError(f'{config.__name__} has no field {field!r}')
  same = ('vocab', 'width', 'heads', 'kv_heads', 'head_dim', 'ffn')
  of_target = {field: getattr(of, field) for field in same}
  return config(
    **of_target | dict(
      layers=layers, block=block, mask_id=mask_id,
      taps=tap_ids(of.layers, taps), norm_eps=of.norm_eps,
      rope_base=of.rope_base,
    ) | own,
  )  # fmt: skip
