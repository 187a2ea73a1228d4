"""Drafters in the published checkpoint layouts.

Read: z-lab's DFlash and DFlash2, SpecForge's Domino, DSpark and DSpine,
DeepSpec's DSpark, and the DSpine authors' release, whose config is nested and
whose token codes lie in a file of their own. Written: all but the last two,
which become SpecForge's.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from safetensors import safe_open

from spinejax.drafters.base import DraftModel
from spinejax.drafters.files import (
  Path,
  read_settings,
  write_files,
)
from spinejax.drafters.layout import Tensors, is_finite
from spinejax.drafters.layouts import LAYOUTS, layout_of
from spinejax.drafters.layouts.dspark import COPIES
from spinejax.errors import InputError
from spinejax.target.hf_dir import SafetensorsDir
from spinejax.target.loading import Target
from spinejax.target.parse import understood


def read_checkpoint(path: Path, target: Target | None = None) -> DraftModel:
  """Reads a published drafter; its weights stay NumPy, dtype as stored.

  Args:
    path: the directory.
    target: refuse a drafter that does not fit it; it also supplies its number
      of layers where a config states neither taps nor that number.

  Raises:
    InputError: a file, field or tensor is missing or not as expected.
  """
  path, hf = pathlib.Path(path), read_settings(path)
  if 'spinejax' in hf:
    raise InputError(f'{path.name} is a bundle of this library: read_bundle')
  hf = hf['config'] if isinstance(hf.get('config'), dict) else hf
  files = SafetensorsDir(path)

  # Early exports of SpecForge keep the heads under this name.
  stored = {name.removeprefix('logit_head.'): name for name in files.where}
  if len(stored) < len(files.where):
    raise InputError(
      f'{path.name}: a tensor is there both with and without the prefix '
      "'logit_head.'"
    )

  def get(name: str) -> np.ndarray:
    if name == 'transfer_codes' and name not in stored:
      return _separate_codes(path)
    return files(stored.get(name, name))

  # A flag of SpecForge: false until the codes have been computed.
  names = set(stored) - {'transfer_ready'}
  if 'transfer_ready' in files.where and not files('transfer_ready').all():
    raise InputError(
      f'{path.name}: transfer_ready is false: the checkpoint was saved before '
      'its token codes were computed'
    )
  return read_model(hf, Tensors(get, names, path.name), target)


def read_model(
  hf: Mapping[str, Any],
  tensors: Tensors,
  target: Target | None,
  **fields: Any,
) -> DraftModel:
  """A drafter from its config.json and tensors, checked against the target.

  Args:
    fields: what else the DraftModel holds. They are checked before the
      weights are read.
  """
  config = f'{tensors.source}/config.json'
  try:
    with understood(config):
      layout = layout_of(hf)
      layers = None if target is None else target.cfg.layers
      cfg = layout.config(hf, tensors, layers)
  except InputError as error:
    text = str(error).removeprefix(f'{config}: ')
    raise InputError(f'{config}: {text}') from None
  drafter = layout.drafter(cfg)
  if target is not None:
    DraftModel(drafter, **fields).check(target)
  model = DraftModel(drafter, layout.params(tensors, cfg), **fields)
  tensors.finish()
  if target is not None:
    _check_copies(tensors, target)
  return model


def _check_copies(tensors: Tensors, target: Target) -> None:
  """Refuses copies of the target's tables that are not the target's."""
  tables = (target.params.embed_VD, target.head_VD)
  for name, table in zip(COPIES, tables, strict=True):
    if name not in tensors:
      continue
    copy, table = tensors(name, table.shape), np.asarray(table)
    # What one of them was stored in may be narrower than the other's dtype.
    narrow = min(copy.dtype, table.dtype, key=lambda dtype: dtype.itemsize)
    if not np.array_equal(copy.astype(narrow), table.astype(narrow)):
      raise InputError(
        f'{tensors.source}: tensor {name!r} is not that of {target.name}: '
        'the drafter was trained for another target'
      )


def _separate_codes(path: pathlib.Path) -> np.ndarray:
  """`codes` of the safetensors file beside the weights that has them."""
  found = []
  for file in sorted(path.glob('*.safetensors')):
    try:
      with safe_open(str(file), 'numpy') as opened:
        if 'codes' in opened.keys():  # noqa: SIM118, it is not a mapping
          found.append(opened.get_tensor('codes'))
    except Exception as error:  # safetensors raises its own bare Exception
      raise InputError(
        f'{file}: truncated or not safetensors ({error})'
      ) from None
  if not found:
    raise InputError(
      f'{path.name}: token codes are missing: neither transfer_codes in the '
      'weights nor codes in another .safetensors file; they cannot be rebuilt, '
      'for the signs of their axes are arbitrary and must be those of training'
    )
  if any(not np.array_equal(found[0], codes) for codes in found[1:]):
    raise InputError(f'{path.name}: several files hold different token codes')
  return found[0]


def write_checkpoint(
  path: Path, model: DraftModel, target: Target | None = None
) -> None:
  """Writes a drafter in the published layout, for other engines to read.

  The weights keep their dtype. A failure leaves what was there before.

  Args:
    path: directory, made if need be; other files in it stay.
    model: any drafter with weights.
    target: states `num_target_layers` and `max_position_embeddings`, which
      some readers insist on.

  Raises:
    InputError: the layout has no words for this drafter, a weight is not
      finite, or the files cannot be written there.
  """
  tensors = model_tensors(model)
  if 'mask_embedding' in tensors:
    raise InputError(
      'the published layout has no place for a learned mask embedding; use '
      'write_bundle'
    )
  if 'transfer_codes' in tensors:
    tensors['transfer_ready'] = np.array(True)
  write_files(path, model_settings(model, tensors, target), tensors)


def model_tensors(model: DraftModel) -> dict[str, np.ndarray]:
  """Published names -> weights, on the host; all finite."""
  name = model.drafter.name
  if name not in LAYOUTS:
    raise InputError(f'drafter {name!r} has no weights to write')
  tensors = jax.device_get(LAYOUTS[name].tensors(model.params))
  for tensor, x in tensors.items():
    if not is_finite(x):
      raise InputError(
        f'drafter {name}: tensor {tensor!r} has values that are not finite'
      )
  return tensors


def model_settings(
  model: DraftModel,
  tensors: Mapping[str, np.ndarray],
  target: Target | None = None,
) -> dict[str, Any]:
  """The published config.json."""
  layout = LAYOUTS[model.drafter.name]
  settings = {
    'architectures': [layout.architectures[0]],
    **layout.settings(model.drafter.cfg),
    'dtype': str(tensors['fc.weight'].dtype),
  }
  if target is not None:
    settings['num_target_layers'] = target.cfg.layers
    settings['max_position_embeddings'] = target.cfg.max_position
  return settings
