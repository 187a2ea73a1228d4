"""Steady pieces of serving whose energy is measured, and whole requests.

A request reads its prompt and then decodes its answer, one plain step a token,
in a batch of requests of the same lengths. Both are the programs that decode:
`target.model.read_prompts` and `decode.loop.run_rounds`. What they compute is
noise, from random weights and caches filled with it; what they cost is not.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import random
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from spinejax.decode.loop import run_rounds
from spinejax.decode.round import Params
from spinejax.decode.state import init_state
from spinejax.decode.timing import noise
from spinejax.drafters.plain import plain
from spinejax.errors import InputError
from spinejax.target.config import TargetConfig
from spinejax.target.memory import kv_bytes
from spinejax.target.model import (
  KVCache,
  TargetParams,
  init_cache,
  read_prompts,
)
from spinejax.verify.sampling import Sampling

# Rows that a cache has beyond a request's last token: the anchor, and the row
# that a round may write.
_SPARE = 2


@dataclasses.dataclass(frozen=True)
class Tier:
  """Caches of `capacity` tokens for `batch` requests at once."""

  batch: int
  capacity: int

  @property
  def longest(self) -> int:
    """Tokens of the longest request."""
    return self.capacity - _SPARE


@dataclasses.dataclass(frozen=True)
class Piece:
  """A steady piece of work.

  Attributes:
    kind: 'prefill': prompts of `tokens` are read, `batch` in a call;
      'decode': `rounds` steps at a time from `tokens` of context on.
    tier: whose cache it works on.
    batch: requests in a call.
    tokens: see above.
    rounds: steps in a call; 0 for prefill.
  """

  kind: str
  tier: Tier
  batch: int
  tokens: int
  rounds: int = 0

  @property
  def context(self) -> float:
    """Mean context of its steps; 0 of prefill, which begins with none."""
    return self.tokens + (self.rounds - 1) / 2 if self.rounds else 0.0

  @property
  def key(self) -> tuple[str, int, int]:
    """What it is called by among those of a model."""
    return self.kind, self.tier.longest, self.tokens


def tier(
  cfg: TargetConfig, capacity: int, most: int, memory: float, dtype
) -> Tier:
  """As many requests as caches fit into memory, at most `most`.

  Args:
    memory: bytes for the caches.

  Raises:
    InputError: not even one fits.
  """
  each = kv_bytes(cfg, 1, capacity, dtype)
  batch = min(most, int(memory // each))
  if batch < 1:
    raise InputError(
      f'a cache of {capacity} tokens takes {each / 2**30:.1f} GiB, '
      f'{memory / 2**30:.1f} GiB are free for it'
    )
  # Whole groups of prompts, and of rows of a tile.
  return Tier(batch - batch % 16 if batch > 16 else batch, capacity)


def tier_of(tiers: Sequence[Tier], tokens: int) -> Tier:
  """The smallest that holds requests of so many tokens."""
  fitting = [one for one in tiers if one.longest >= tokens]
  if not fitting:
    most = max(one.longest for one in tiers)
    raise InputError(f'{tokens} tokens, expected at most {most}')
  return min(fitting, key=lambda one: one.capacity)


def plan(
  tiers: Sequence[Tier], *, prompts: Sequence[int], prompt_tokens: int,
  contexts: Sequence[Sequence[int]], rounds: int,
) -> list[Piece]:  # fmt: skip
  """The pieces that requests of a model are composed of.

  Args:
    prompts: lengths at which reading prompts is measured.
    prompt_tokens: read in a call, about.
    contexts: at which decoding is measured, for each tier.
    rounds: steps in a call.
  """
  pieces = []
  for tokens in prompts:
    one = tier_of(tiers, tokens)
    batch = min(one.batch, max(1, prompt_tokens // tokens))
    pieces.append(Piece('prefill', one, batch, tokens))
  for one, some in zip(tiers, contexts, strict=True):
    pieces += [Piece('decode', one, one.batch, c, rounds) for c in some]
  return pieces


def shuffled(pieces: Sequence[Piece], seed: str) -> list[Piece]:
  """In random order, but tier by tier: changing the cache takes seconds."""
  rng = random.Random(seed)
  tiers = list(dict.fromkeys(piece.tier for piece in pieces))
  rng.shuffle(tiers)
  groups = [[p for p in pieces if p.tier == one] for one in tiers]
  for group in groups:
    rng.shuffle(group)
  return sum(groups, [])


@functools.partial(jax.jit, static_argnames='cfg', donate_argnames='cache')
def _read(cfg, params, tokens_BQ, cache, first):
  return read_prompts(cfg, params, tokens_BQ, cache, first)


@functools.partial(jax.jit, static_argnames='cfg', donate_argnames='cache')
def _decode(cfg, params, cache, context, rounds):
  """`rounds` plain steps of every request, from `context` tokens on."""
  B, T = cache.length_B.shape[0], cache.capacity
  count_B = jnp.full((B,), context + 1)
  state = init_state(
    cfg, plain(), jnp.zeros((B, T), jnp.int32), count_B,
    cap_B=jnp.full((B,), T - 1), seed_B=jnp.arange(B, dtype=jnp.uint32),
    stop_ids_E=jnp.full((1,), cfg.vocab, jnp.int32),  # no token
    dtype=params.embed_VD.dtype,
  )  # fmt: skip
  state = dataclasses.replace(
    state, target_cache=dataclasses.replace(cache, length_B=count_B - 1)
  )
  weights = Params(params, None)
  state = run_rounds(cfg, plain(), weights, state, Sampling.make(B), rounds)
  return state.tokens_BT, state.target_cache


class Workload:
  """The pieces of one model, compiled, on one tier's cache at a time."""

  def __init__(self, cfg: TargetConfig, params: TargetParams, pieces):
    """Compiles every program that the pieces need, side by side.

    Args:
      pieces: what will be run.

    Raises:
      InputError: a piece does not fit its tier.
    """
    self._cfg, self._params = cfg, params
    self._dtype = params.embed_VD.dtype
    self._tier: Tier | None = None
    self._cache: KVCache | None = None
    for piece in pieces:
      need = piece.tokens + (piece.rounds + _SPARE if piece.rounds else 0)
      if need > piece.tier.capacity or piece.batch > piece.tier.batch:
        raise InputError(
          f'{piece.kind} of {piece.batch} x {piece.tokens} tokens does not fit '
          f'{piece.tier.batch} x {piece.tier.capacity}'
        )
    wanted = dict.fromkeys(map(self._program, pieces))
    with concurrent.futures.ThreadPoolExecutor() as pool:
      made = pool.map(self._compile, wanted)
      self._programs = dict(zip(wanted, made, strict=True))

  def enter(self, one: Tier) -> None:
    """Makes the cache of a tier, filled with noise, in place of the last."""
    if one == self._tier:
      return
    self._cache = None  # freed before the next one is made
    shapes = self._shapes(one)
    k, v = noise((shapes.k, shapes.v), self._dtype)
    self._cache = KVCache(k, v, jnp.zeros((one.batch,), jnp.int32))
    self._tier = one

  def leave(self) -> None:
    """Frees the cache."""
    self._cache = self._tier = None

  def run(self, piece: Piece, first: int = 0, rounds: int | None = None):
    """One call; returns an array to wait for.

    Args:
      first: of prefill, the request it begins at.
      rounds: of decoding, in the place of the piece's.
    """
    self.enter(piece.tier)
    program = self._programs[self._program(piece)]
    if piece.kind == 'prefill':
      tokens_BQ = jnp.ones((piece.batch, piece.tokens), jnp.int32)
      done, self._cache = program(
        self._params, tokens_BQ, self._cache, jnp.int32(first)
      )
    else:
      steps = piece.rounds if rounds is None else rounds
      done, self._cache = program(
        self._params, self._cache, jnp.int32(piece.tokens), jnp.int32(steps)
      )
    return done

  def run_whole(self, prefill: Piece, decode: Piece, output: int):
    """Whole requests, a full tier of them: prompts in turn, then answers."""
    for first in range(0, prefill.tier.batch, prefill.batch):
      # The last group may overlap the one before it.
      first = min(first, prefill.tier.batch - prefill.batch)
      self.run(prefill, first)
    return self.run(decode, rounds=output)

  def _program(self, piece: Piece):
    """Equal where one program serves."""
    prompts = piece.batch, piece.tokens
    return piece.kind, piece.tier, prompts if piece.kind == 'prefill' else None

  def _compile(self, program):
    kind, one, prompts = program
    cache, number = self._shapes(one), jax.ShapeDtypeStruct((), jnp.int32)
    if kind == 'prefill':
      tokens_BQ = jax.ShapeDtypeStruct(prompts, jnp.int32)
      arguments = (self._params, tokens_BQ, cache, number)
      return _read.lower(self._cfg, *arguments).compile()
    arguments = (self._params, cache, number, number)
    return _decode.lower(self._cfg, *arguments).compile()

  def _shapes(self, one: Tier) -> KVCache:
    sizes = one.batch, one.capacity, self._dtype
    return jax.eval_shape(lambda: init_cache(self._cfg, *sizes))
