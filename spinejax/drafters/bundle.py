"""Drafters in this library's own format: small, and tied to one target.

The published layout, but for three things. The token codes [V, r], the bulk of
a small DSpine, are left out: their basis is stored in float64 and they are
rebuilt from the target's head. Matrices may be stored in 8 bits. config.json
has an object `spinejax`: {format, head_hash, codes_hash, card}.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spinejax.drafters import codes
from spinejax.drafters.base import DraftModel
from spinejax.drafters.checkpoint import (
  Path,
  model_settings,
  model_tensors,
  read_model,
  read_settings,
  write_files,
)
from spinejax.drafters.layout import Tensors
from spinejax.drafters.settings import section
from spinejax.errors import InputError
from spinejax.target.hf_dir import SafetensorsDir
from spinejax.target.loading import Target

FORMAT = 1
_STEPS, _SCALE = '.q8', '.scale'


def is_bundle(path: Path) -> bool:
  """Whether a directory is in this format, rather than a published one."""
  return 'spinejax' in read_settings(path)


def write_bundle(
  path: Path,
  model: DraftModel,
  basis: codes.Basis | None,
  target_head_hash: str,
  codes_hash: str | None,
  card: Mapping[str, Any],
  eight_bit: bool = False,
) -> None:
  """Writes a drafter for `read_bundle`. A failure leaves what was there.

  Args:
    path: directory, made if need be; other files in it stay.
    model: DFlash or DSpine.
    basis: the basis that DSpine was trained with; None for DFlash.
    target_head_hash: `Target.head_hash` of the target trained for.
    codes_hash: `codes.codes_hash` of the float64 codes; None for DFlash.
    card: JSON values about the training: target, data, steps, results.
    eight_bit: store matrices as int8 with a float32 scale a row (an output),
      and vectors as float32.

  Raises:
    InputError: basis or codes hash do not fit the drafter; a weight is not
      finite (8 bits only).
  """
  tensors = model_tensors(model)
  settings = model_settings(model, tensors)
  coded = tensors.pop('transfer_codes', None) is not None
  if (coded, coded) != (basis is not None, codes_hash is not None):
    raise InputError(
      f'drafter {model.drafter.name} is written '
      f'{"with" if coded else "without"} basis and codes_hash'
    )
  if eight_bit:
    tensors = _pack(tensors)
  if basis is not None:
    cfg = model.drafter.cfg
    if basis.axes_DR.shape != (cfg.width, cfg.rank):
      raise InputError(
        f'basis has axes of shape {basis.axes_DR.shape}, expected '
        f'{(cfg.width, cfg.rank)}'
      )
    tensors |= {
      'transfer_axes': basis.axes_DR.astype(np.float64),
      'transfer_eigenvalues': basis.eigenvalues_R.astype(np.float64),
      'transfer_mean': basis.mean_D.astype(np.float64),
    }
  settings['spinejax'] = {
    'format': FORMAT,
    'head_hash': target_head_hash,
    'codes_hash': codes_hash,
    'card': dict(card),
  }
  write_files(path, settings, tensors)


def read_bundle(path: Path, target: Target) -> DraftModel:
  """Reads what `write_bundle` wrote; weights are NumPy, on the host.

  Codes are rebuilt in float64 and cast once, to float32.

  Raises:
    InputError: the drafter was trained for another target, or a file, field
      or tensor is missing or not as expected.
  """
  path, hf = pathlib.Path(path), read_settings(path)
  own = hf.get('spinejax')
  if not isinstance(own, dict) or own.get('format') != FORMAT:
    raise InputError(
      f'{path.name}/config.json: spinejax = {own!r}, expected an object with '
      f'format {FORMAT}'
    )
  missing = {'head_hash', 'codes_hash', 'card'} - set(own)
  if missing:
    raise InputError(
      f'{path.name}/config.json: spinejax lacks {min(missing)!r}'
    )
  files = SafetensorsDir(path)
  rank = section(hf, 'dspine_config').get('transfer_rank')

  def get(name: str) -> np.ndarray:
    if name == 'transfer_codes':
      return _codes(files, path.name, target, rank, own['codes_hash'])
    if name + _STEPS in files.where:
      return _unpack(files, path.name, name)
    return files(name)

  names = {
    name.removesuffix(_STEPS)
    for name in files.where
    if not name.endswith(_SCALE) and not name.startswith('transfer_')
  }
  return read_model(
    hf,
    Tensors(get, names, path.name),
    target,
    head_hash=own['head_hash'],
    card=own['card'],
  )


def _codes(
  files: SafetensorsDir, source: str, target: Target, rank: int, expected: str
) -> np.ndarray:
  """Codes from the stored basis and the target's head."""

  def stored(name: str, *shape: int) -> np.ndarray:
    if name not in files.where:
      raise InputError(f'{source}: tensor {name!r} is missing')
    x = files(name)
    if x.shape != shape or x.dtype != np.float64:
      raise InputError(
        f'{source}: tensor {name!r} is {x.dtype} of shape {x.shape}, expected '
        f'float64 of shape {shape}'
      )
    return x

  D = target.cfg.width
  basis = codes.Basis(
    stored('transfer_axes', D, rank),
    stored('transfer_eigenvalues', rank),
    stored('transfer_mean', D),
  )
  codes_VR = codes.token_codes(target.head_VD, basis)
  found = codes.codes_hash(codes_VR)
  if found != expected:
    raise InputError(
      f'{source}: codes rebuilt from the head of {target.name} have hash '
      f'{found}, expected {expected}'
    )
  return codes_VR.astype(np.float32)


def _pack(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Matrices in 8 bits: int8 steps times a scale for each row."""
  packed = {}
  for name, x in tensors.items():
    x = x.astype(np.float32)
    if not np.isfinite(x).all():
      raise InputError(f'tensor {name!r} is not finite')
    if x.ndim < 2:
      packed[name] = x
      continue
    scale = np.abs(x).max(axis=-1) / 127
    steps = x / np.where(scale > 0, scale, 1)[..., None]
    packed[name + _STEPS] = np.rint(steps).astype(np.int8)
    packed[name + _SCALE] = scale
  return packed


def _unpack(files: SafetensorsDir, source: str, name: str) -> np.ndarray:
  steps = files(name + _STEPS)
  scale = Tensors(files, files.where, source)(name + _SCALE, steps.shape[:-1])
  if steps.dtype != np.int8:
    raise InputError(
      f'{source}: tensor {name + _STEPS!r} has dtype {steps.dtype}, expected '
      'int8'
    )
  return steps * scale[..., None]
