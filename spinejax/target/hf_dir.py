"""Reading a target from a Hugging Face directory, without torch."""

import pathlib
import reprlib

import numpy as np
from safetensors import safe_open

from spinejax.errors import InputError
from spinejax.target.assemble import (
  checked_fetch,
  layer_from_tensors,
  refuse_unread,
)
from spinejax.target.config import TargetConfig, config_of_hf
from spinejax.target.model import TargetParams
from spinejax.target.parse import read_json

__all__ = ['SafetensorsDir', 'read_hf', 'read_json']


def _weight_map(index: pathlib.Path) -> dict[str, str]:
  """Tensor name -> file name, of an index."""
  names = read_json(index).get('weight_map')
  if (
    not isinstance(names, dict)
    or not names
    or not all(isinstance(file, str) for file in names.values())
  ):
    raise InputError(
      f'{index}: weight_map = {reprlib.repr(names)}; expected tensor names and '
      'the file of each'
    )
  return names


class SafetensorsDir:
  """Tensors of `model.safetensors`, or of the shards its index lists.

  Raises:
    InputError: there are no weights, a shard is missing, or one is truncated.
  """

  def __init__(self, path: pathlib.Path):
    index = path / 'model.safetensors.index.json'
    if index.exists():
      names = _weight_map(index)
      files = {f: path / f for f in set(names.values())}
    else:
      names = None
      files = {'model.safetensors': path / 'model.safetensors'}
    self._open, self.where, self.read = {}, {}, set()
    for name, file in files.items():
      if not file.is_file():
        raise InputError(f'{file}: no such file (weights are missing)')
      try:
        handle = safe_open(str(file), 'numpy')
      except Exception as error:  # safetensors raises its own bare Exception
        raise InputError(
          f'{file}: truncated or not safetensors ({error})'
        ) from None
      self._open[name] = handle
      for key in handle.keys():
        self.where[key] = name
    for key, file in (names or {}).items():
      if self.where.get(key) != file:
        raise InputError(f'{index}: tensor {key!r} is not in {file}')

  def __call__(self, name: str) -> np.ndarray:
    handle = self._open[self.where[name]]
    self.read.add(name)
    try:
      return handle.get_tensor(name)
    except AttributeError:  # a dtype that NumPy and ml_dtypes do not know
      dtype = handle.get_slice(name).get_dtype()
      raise InputError(
        f'{self.where[name]}: tensor {name!r} has dtype {dtype}, which is not '
        'supported'
      ) from None


def read_hf(path: pathlib.Path) -> tuple[TargetConfig, TargetParams]:
  """Config and NumPy weights (dtype as stored) of a Hugging Face directory.

  Raises:
    InputError: a file, field or tensor is missing or not as expected.
  """
  cfg = config_of_hf(read_json(path / 'config.json'))
  get = SafetensorsDir(path)
  fetch = checked_fetch(get, path.name)
  table = (cfg.vocab, cfg.width)
  embed = fetch('model.embed_tokens.weight', table)
  params = TargetParams(
    embed_VD=embed,
    layers=tuple(
      layer_from_tensors(fetch, f'model.layers.{i}.', cfg)
      for i in range(cfg.layers)
    ),
    norm_D=fetch('model.norm.weight', (cfg.width,)),
    head_VD=embed if cfg.tied else fetch('lm_head.weight', table),
  )
  refuse_unread(get.where.keys() - get.read, cfg, path.name)
  return cfg, params
