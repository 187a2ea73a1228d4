"""Which rounds are measured: places that fit, in which order, what is there."""

import collections
import dataclasses
import pathlib
import random
from collections.abc import Sequence

import numpy as np

from experiments import common
from experiments.random_weights import DRAFTERS
from spinejax import report
from spinejax.decode.forced import survival_of_mean
from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.shape import drafter_config
from spinejax.energy.operating import Acceptance
from spinejax.energy.speculation import PLAIN
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.loading import target_config
from spinejax.target.memory import available_bytes, memory_table


@dataclasses.dataclass(frozen=True)
class Shape:
  """A target, and its drafters' shape at the widest block."""

  name: str
  cfg: TargetConfig
  draft: DSpineConfig


@dataclasses.dataclass(frozen=True)
class Piece:
  """Rounds at one place.

  Attributes:
    kind: 'round', or 'whole': with acceptance forced.
    context: the mean of its rounds.
    tokens: that a request gets from a round.
  """

  kind: str
  drafter: str
  rows: int
  context: int
  tokens: float = 1.0


@dataclasses.dataclass(frozen=True)
class Group:
  """Pieces that share caches."""

  shape: Shape
  batch: int
  capacity: int
  pieces: tuple[Piece, ...]

  def key(self, piece: Piece) -> tuple:
    """What a piece is called by among all rows."""
    return (piece.kind, self.shape.name, piece.drafter, piece.rows,
            self.batch, piece.context)  # fmt: skip


def key_of(row: dict) -> tuple:
  """`Group.key` of a metric row of a piece."""
  names = ('kind', 'target', 'drafter', 'rows', 'batch', 'context')
  return tuple(row.get(name) for name in names)


def check(config) -> None:
  """Refuses what can be seen before any shape is known."""
  common.file_name('name', config.name)
  common.dtype(config.dtype)
  common.positive(config, 'rounds')
  for field in ('call_seconds', 'seconds', 'settle', 'idle_seconds',
                'budget_minutes'):  # fmt: skip
    if not config[field] > 0:
      raise InputError(f'{field} = {config[field]}, expected more than 0')
  if not 0 <= config.again <= 1:
    raise InputError(f'again = {config.again}, expected between 0 and 1')
  for field in ('targets', 'drafters', 'batches', 'contexts'):
    if not config[field]:
      raise InputError(f'{field} is empty, expected at least one')
  for field, least in (('batches', 1), ('contexts', config.rounds + 2)):
    for value in config[field]:
      if type(value) is not int or value < least:
        raise InputError(
          f'{field} has {value!r}, expected whole numbers >= {least}'
        )
  common.distinct('targets', [pathlib.Path(x[0]).name for x in config.targets])
  common.distinct('drafters', [f'{x[0]} {x[1]}' for x in config.drafters])
  for name, rows, batches in config.drafters:
    if name not in DRAFTERS or type(rows) is not int or rows < 2:
      raise InputError(
        f'drafters has {name!r} of {rows!r} rows, expected one of '
        f'{", ".join(DRAFTERS)} of 2 or more'
      )
    for batch in batches:
      if batch not in config.batches:
        raise InputError(
          f'drafters: {name} at batch {batch!r}, expected one of batches = '
          f'{tuple(config.batches)}'
        )
  for batch, context, _ in config.whole:
    if batch not in config.batches or context not in config.contexts:
      raise InputError(
        f'whole has batch {batch!r} at context {context!r}, expected some of '
        'batches and contexts'
      )


def shape_of(source: str, **draft) -> Shape:
  """The shape of a preset, or of a folder with config.json.

  Args:
    draft: fields of its dspine.
  """
  cfg = target_config(source)
  settings = dict(mask_id=0, causal=True) | draft
  shape = drafter_config(DSpineConfig, cfg, **settings)
  return Shape(pathlib.Path(source).name, cfg, shape)


def plan(config) -> tuple[list[Group], list[dict]]:
  """All groups, and rows of the places that do not fit.

  Raises:
    InputError: bad settings, or no place of a target fits.
  """
  check(config)
  have = available_bytes()
  rows = max(rows for _, rows, _ in config.drafters)
  groups, refused = [], []
  for source, rank, message in config.targets:
    shape = shape_of(
      source, block=rows, rank=rank, message=message, **config.drafter
    )
    own = []
    for batch in config.batches:
      fitting = []
      for context in config.contexts:
        need = bytes_needed(config, shape, batch, context)
        if have is None or need <= have:
          fitting.append(context)
        else:
          refused.append(dict(
            kind='refused', target=shape.name, batch=batch, context=context,
            gib_needed=need / 2**30, gib_free=have / 2**30,
          ))  # fmt: skip
      if fitting:
        capacity = capacity_of(config, batch, fitting)
        pieces = pieces_of(config, batch, fitting)
        own.append(Group(shape, batch, capacity, pieces))
    if not own:
      least = bytes_needed(
        config, shape, min(config.batches), min(config.contexts)
      )
      raise InputError(
        f'{shape.name}: no batch and context fits, the least needs '
        f'{least / 2**30:.1f} GiB, {have / 2**30:.1f} GiB are free'
      )
    groups += own
  return shuffled(groups, config.seed), refused


def capacity_of(config, batch: int, contexts: list[int]) -> int:
  """Rows of caches that hold rounds of a batch at these contexts."""
  widest = max(rows for _, rows, _ in config.drafters)
  need = 0
  for context in contexts:
    tokens = [t for b, c, t in config.whole if (b, c) == (batch, context)]
    # Growth, and as much again: some requests accept more than others.
    grown = config.rounds * (2 * max(tokens) if tokens else 1)
    need = max(need, context + round(grown) + 2 * widest)
  step = 512 if need > 1024 else 128
  return -(-need // step) * step


def bytes_needed(config, shape: Shape, batch: int, context: int) -> int:
  """An estimate: the target, all drafters, one's cache, activations."""
  table = memory_table(
    shape.cfg, shape.draft, batch, capacity_of(config, batch, [context]),
    common.dtype(config.dtype),
  )  # fmt: skip
  others = len(config.drafters) - 1
  each = table['draft weights'] + table['token codes']
  return table['total'] + others * each


def pieces_of(config, batch: int, contexts: list[int]) -> tuple[Piece, ...]:
  """What is measured at one batch."""
  models = [(PLAIN, 1, ()), *config.drafters]
  pieces = [
    Piece('round', name, rows, context)
    for name, rows, batches in models
    if not batches or batch in batches
    for context in contexts
  ]
  name, rows, _ = config.drafters[0]
  pieces += [
    Piece('whole', name, rows, context, float(tokens))
    for at, context, tokens in config.whole
    if at == batch and context in contexts
  ]
  return tuple(pieces)


def shuffled(groups: list[Group], seed: int) -> list[Group]:
  """In random order, but target by target: their weights take seconds."""
  rng = random.Random(seed)
  names = list(dict.fromkeys(group.shape.name for group in groups))
  rng.shuffle(names)
  own = [[g for g in groups if g.shape.name == name] for name in names]
  for some in own:
    rng.shuffle(some)
  return sum(own, [])


def missing(config, group: Group, rows: list[dict]) -> list[Piece]:
  """The pieces still to be measured, in random order.

  A share of them comes twice; the second time after all others.
  """
  rng = random.Random(f'{config.seed} {group.shape.name} {group.batch}')
  first = list(group.pieces)
  rng.shuffle(first)
  rounds = [piece for piece in first if piece.kind == 'round']
  again = rng.sample(rounds, round(config.again * len(rounds)))
  there = collections.Counter(map(key_of, rows))
  left = []
  for piece in (*first, *again):
    key = group.key(piece)
    if there[key]:
      there[key] -= 1
    else:
      left.append(piece)
  return left


def acceptances(
  texts: Sequence[str], tokens: Sequence[float], rows: int
) -> list[Acceptance]:
  """Acceptance that was measured on text, and then what is given.

  Args:
    texts: result files of `experiments.acceptance`.
    tokens: of a round of `rows`, each slot as good as the others; shorter
      blocks get what these slots give.

  Raises:
    InputError: a file without acceptance, or tokens that no block gives.
  """
  found = []
  for path in texts:
    measured = [
      row
      for row in report.results.load(path)['metrics']
      if row.get('acceptance_by_position')
    ]
    if not measured:
      raise InputError(f'{path}: no acceptance_by_position in any row')
    found += [
      Acceptance(
        row['dataset'], False, row['target'],
        {row['drafter']: row['acceptance_by_position']},
      )
      for row in measured
    ]  # fmt: skip
  for mean in tokens:
    survival = survival_of_mean(mean, rows - 1)
    found.append(
      Acceptance(f'{mean:g} of {rows} rows', True, '', {'': survival})
    )
  return found


def survival_of(piece: Piece) -> np.ndarray:
  """What is accepted in the rounds of a piece."""
  slots = piece.rows - 1
  if piece.kind == 'round':
    return np.zeros(slots)
  return np.array(survival_of_mean(piece.tokens, slots))
