"""Loading a drafter by path or by name."""

import dataclasses
import numbers
import os
import pathlib
import warnings

import jax.numpy as jnp

from spinejax.drafters.base import DraftModel
from spinejax.drafters.bundle import is_bundle, read_bundle
from spinejax.drafters.checkpoint import read_checkpoint
from spinejax.drafters.dspine import DSpineParams
from spinejax.drafters.factored import make_tables
from spinejax.drafters.ngram import ngram
from spinejax.drafters.plain import plain
from spinejax.errors import InputError
from spinejax.sharding import shard
from spinejax.target.loading import Target

_WEIGHTS = pathlib.Path(__file__).parent / 'weights'
_DTYPES = ('float32', 'bfloat16', 'float16')


def plain_model(slots: int = 0) -> DraftModel:
  """Plain decoding."""
  return DraftModel(plain(slots))


def ngram_model(slots: int = 15, longest: int = 3) -> DraftModel:
  """Prompt lookup."""
  return DraftModel(ngram(slots, longest))


def shipped() -> tuple[str, ...]:
  """Names of the trained drafters that come with this package."""
  return tuple(sorted(p.parent.name for p in _WEIGHTS.glob('*/config.json')))


def load_drafter(
  source: str | os.PathLike[str],
  target: Target,
  dtype=None,
  block: int | None = None,
  factored: bool = False,
) -> DraftModel:
  """Loads a drafter for `target`, its weights placed where the target's are.

  Args:
    source: `plain`, `ngram`, a name of `shipped()`, or a directory: one that
      `write_bundle` wrote, or a published checkpoint.
    target: what it shall draft for.
    dtype: dtype of its weights; by default the target's.
    block: rows that a round verifies, the anchor included, in place of the
      trained number. DSpine is causal inside the block, so a shorter block has
      the same leading proposals. The bidirectional drafters propose other
      tokens, and worse ones, at a length they were not trained for; and slots
      beyond the trained length, of which a warning tells, are guesses of an
      untrained position in all.
    factored: score DSpine's transition table in the factored form: less
      arithmetic a round, for three more tables of [V, M] float32.

  Raises:
    InputError: there is no such drafter, it is broken, it was trained for
      another target, or it cannot be split over the target's mesh.
  """
  _check(source, dtype, block)
  if source in ('plain', 'ngram'):
    if factored:
      raise _not_factored(source)
    make = plain_model if source == 'plain' else ngram_model
    return make() if block is None else make(block - 1)
  path = _WEIGHTS / source if source in shipped() else pathlib.Path(source)
  if not os.path.isdir(path):  # False also for a name that no path can have
    names = ', '.join(('plain', 'ngram', *shipped()))
    raise InputError(
      f'drafter {str(source)!r} is neither a directory nor one of {names}'
    )
  read = read_bundle if is_bundle(path) else read_checkpoint
  model = read(path, target)
  if dtype is None:
    dtype = target.params.embed_VD.dtype
  drafter = model.drafter
  if factored and not isinstance(model.params, DSpineParams):
    raise _not_factored(drafter.name)
  if block is not None:
    if block > drafter.slots + 1:
      warnings.warn(
        f'block = {block}, but {source} was trained for {drafter.slots + 1} '
        'rows: what it proposes beyond them is a guess',
        stacklevel=2,
      )
    drafter = dataclasses.replace(drafter, cfg=drafter.cfg.of_rows(block))
  params = shard(model.params, target.mesh, dtype)
  if factored:
    tables = make_tables(drafter.cfg, params, target.params.head_VD)
    tables = shard(tables, target.mesh)
    params = dataclasses.replace(params, tables=tables)
  return dataclasses.replace(model, drafter=drafter, params=params)


def _check(source: object, dtype: object, block: object) -> None:
  path = isinstance(source, str | os.PathLike) and os.fspath(source)
  if not path or not isinstance(path, str):
    raise InputError(
      f'source = {source!r}, expected the name of a drafter or a directory'
    )
  if block is not None:
    if not isinstance(block, numbers.Integral) or isinstance(block, bool):
      raise InputError(f'block = {block!r}, expected an integer >= 2')
    if block < 2:
      raise InputError(f'block = {block} leaves no slot to propose')
  if dtype is not None:
    try:
      name = jnp.dtype(dtype).name
    except TypeError:
      name = None
    if name not in _DTYPES:
      raise InputError(
        f'dtype = {name or repr(dtype)}, expected one of {", ".join(_DTYPES)}'
      )


def _not_factored(name: str) -> InputError:
  return InputError(f'drafter {name} has no transition table to factor')
