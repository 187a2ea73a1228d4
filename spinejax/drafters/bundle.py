"""Drafters in this library's own format: small, and tied to one target.

The published layout, but for three things. The token codes [V, r], the bulk of
a small DSpine, are left out: their basis is stored in float64 and they are
rebuilt from the target's head. Matrices may be stored in 8 bits. config.json
has an object `spinejax`: {format, head_hash, codes_hash, card,
weights_sha256}; the last ties it to its model.safetensors.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from spinejax.drafters import codes
from spinejax.drafters.base import DraftModel
from spinejax.drafters.checkpoint import (
  model_settings,
  model_tensors,
  read_model,
)
from spinejax.drafters.files import (
  CONFIG,
  WEIGHTS,
  Path,
  read_settings,
  sha256_of,
  write_files,
)
from spinejax.drafters.layout import Tensors, is_finite
from spinejax.drafters.settings import section
from spinejax.errors import InputError
from spinejax.target.hf_dir import SafetensorsDir
from spinejax.target.loading import Target

FORMAT = 1
_STEPS, _SCALE = '.q8', '.scale'
_BASIS = ('transfer_axes', 'transfer_eigenvalues', 'transfer_mean')


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
    model: any drafter with weights.
    basis: the basis that DSpine was trained with; None for the others.
    target_head_hash: `Target.head_hash` of the target trained for.
    codes_hash: `codes.codes_hash` of the float64 codes, or None.
    card: JSON values about the training: target, data, steps, results.
    eight_bit: store matrices as int8 with a float32 scale a row (an output),
      and vectors as float32.

  Raises:
    InputError: basis or hashes do not fit the drafter, a weight is not
      finite, the card is not JSON, or the files cannot be written there.
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
    parts = (basis.axes_DR, basis.eigenvalues_R, basis.mean_D)
    for name, x in zip(_BASIS, parts, strict=True):
      if not is_finite(x):
        raise InputError(f'basis: {name!r} has values that are not finite')
      tensors[name] = x.astype(np.float64)
  own = {
    'format': FORMAT,
    'head_hash': target_head_hash,
    'codes_hash': codes_hash,
    'card': dict(card) if isinstance(card, Mapping) else card,
  }
  _check(own, f'{pathlib.Path(path).name}/{CONFIG}')
  settings['spinejax'] = own
  write_files(path, settings, tensors, sign='spinejax')


def read_bundle(path: Path, target: Target) -> DraftModel:
  """Reads what `write_bundle` wrote; weights are NumPy, on the host.

  Codes are rebuilt in float64 and cast once, to float32.

  Raises:
    InputError: the drafter was trained for another target, a file, field or
      tensor is missing or not as expected, or the weights are not those that
      the config was written with.
  """
  path, hf = pathlib.Path(path), read_settings(path)
  own = hf.get('spinejax')
  if not isinstance(own, dict) or own.get('format') != FORMAT:
    raise InputError(
      f'{path.name}/config.json: spinejax = {own!r}, expected an object with '
      f'format {FORMAT}'
    )
  missing = {'head_hash', 'codes_hash', 'card', 'weights_sha256'} - set(own)
  if missing:
    raise InputError(
      f'{path.name}/config.json: spinejax lacks {min(missing)!r}'
    )
  _check(own, f'{path.name}/config.json')
  files = SafetensorsDir(path)
  if set(files.where.values()) - {WEIGHTS}:
    raise InputError(f'{path}: holds shards, expected one {WEIGHTS}')
  if sha256_of(path / WEIGHTS) != own['weights_sha256']:
    raise InputError(
      f'{path}: {WEIGHTS} is not the file that {CONFIG} was written with (an '
      'interrupted write?); write it again'
    )
  _check_pairs(files, path.name)

  def get(name: str) -> np.ndarray:
    if name == 'transfer_codes':
      return _codes(files, path.name, target, hf)
    if name + _STEPS in files.where:
      return _unpack(files, path.name, name)
    return files(name)

  names = {
    name.removesuffix(_STEPS)
    for name in files.where
    if not name.endswith(_SCALE) and name not in _BASIS
  }
  return read_model(
    hf,
    Tensors(get, names, path.name),
    target,
    head_hash=own['head_hash'],
    card=own['card'],
  )


def _check(own: Mapping[str, Any], source: str) -> None:
  """Types of the object `spinejax`; `_codes` wants its codes_hash."""
  for name in ('head_hash', 'codes_hash', 'weights_sha256'):
    value = own.get(name)
    if value is None and (name == 'codes_hash' or name not in own):
      continue
    if not isinstance(value, str) or not re.fullmatch('[0-9a-f]+', value):
      raise InputError(
        f'{source}: spinejax.{name} = {value!r}, expected hex digits'
      )
  if not isinstance(own['card'], dict):
    raise InputError(
      f'{source}: spinejax.card = {own["card"]!r}, expected an object'
    )


def _check_pairs(files: SafetensorsDir, source: str) -> None:
  """A matrix in 8 bits is steps and scale, and is not stored plainly too."""
  for name in sorted(files.where):
    plain = name.removesuffix(_STEPS)
    if plain != name and plain in files.where:
      raise InputError(
        f'{source}: tensors {plain!r} and {name!r} are both there, expected '
        'one of them'
      )
    plain = name.removesuffix(_SCALE)
    if plain != name and plain + _STEPS not in files.where:
      raise InputError(
        f'{source}: tensor {name!r} is there, but {plain + _STEPS!r} is missing'
      )


def _codes(
  files: SafetensorsDir, source: str, target: Target, hf: Mapping[str, Any]
) -> np.ndarray:
  """Codes from the stored basis and the target's head."""
  own, expected = section(hf, 'dspine_config'), hf['spinejax']['codes_hash']
  if not own:  # the published layouts would take it for a release of block 16
    raise InputError(f'{source}/config.json: dspine_config is missing')
  if expected is None:
    raise InputError(
      f'{source}/config.json: spinejax.codes_hash is null, expected hex digits'
    )

  def stored(name: str, *shape: int) -> np.ndarray:
    if name not in files.where:
      raise InputError(f'{source}: tensor {name!r} is missing')
    x = files(name)
    if x.shape != shape or x.dtype != np.float64:
      raise InputError(
        f'{source}: tensor {name!r} is {x.dtype} of shape {x.shape}, expected '
        f'float64 of shape {shape}'
      )
    if not is_finite(x):
      raise InputError(
        f'{source}: tensor {name!r} has values that are not finite'
      )
    return x

  D, rank = target.cfg.width, own.get('transfer_rank')
  if rank is None and 'transfer_axes' in files.where:
    rank = files('transfer_axes').shape[-1]
  basis = codes.Basis(
    stored('transfer_axes', D, rank),
    stored('transfer_eigenvalues', rank),
    stored('transfer_mean', D),
  )
  if basis.eigenvalues_R.min() <= 0:
    raise InputError(
      f"{source}: tensor 'transfer_eigenvalues' has {basis.eigenvalues_R.min()}"
      ', expected positive values'
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
