"""Timing rounds of decoding at a context that stays where it is.

What is timed is the program that decodes, `loop.run_rounds`, a number of
rounds in one call, on caches filled with noise: the time of a round does not
depend on what it computes (though zeros may be faster than numbers).
"""

import dataclasses
import functools
import os
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spinejax.decode.loop import run_rounds
from spinejax.decode.round import Params
from spinejax.decode.schedule import PLAIN
from spinejax.decode.state import DecodeState, init_state
from spinejax.drafters.base import Drafter, DraftModel
from spinejax.errors import InputError
from spinejax.report import profile
from spinejax.sharding import mesh_of, shard
from spinejax.target.config import TargetConfig
from spinejax.target.layers import dense
from spinejax.target.model import KVCache, TargetParams, init_cache
from spinejax.target.packing import check_budget
from spinejax.verify.sampling import Sampling

# Bytes; far more than the caches of a device hold.
_COPIED = 2**30


@dataclasses.dataclass(frozen=True)
class Times:
  """Milliseconds of a round, by call: their median, least and largest."""

  median: float
  low: float
  high: float


@dataclasses.dataclass
class Program:
  """A drafter's rounds, compiled, and the drafter's cache.

  Attributes:
    budget: rows that a round verifies in all, packed; None pads.
  """

  draft: DraftModel
  cache: KVCache
  budget: int | None = None
  compiled: jax.stages.Compiled | None = None


class Bench:
  """Rounds of one target at one batch size and context.

  The target's cache serves all programs in turn: each is donated it and hands
  it on.
  """

  def __init__(
    self,
    cfg: TargetConfig,
    params: TargetParams,
    *,
    batch: int,
    context: int,
    capacity: int,
    rounds: int,
    sampling: Sampling | None = None,
    stops: int = 1,
  ):
    """Fills the target's cache.

    Args:
      cfg, params: the target.
      batch: requests.
      context: tokens of each, the anchor included, when a call starts. A
        round adds a token, and what it accepts.
      capacity: rows of the caches.
      rounds: rounds in a call.
      sampling: of the requests; greedy by default.
      stops: how many stop tokens are looked for; none is ever met.

    Raises:
      InputError: a number is too small.
    """
    # A round takes in the features of one token before the anchor, too.
    for field, value, least in (
      ('batch', batch, 1), ('context', context, 2), ('rounds', rounds, 1),
    ):  # fmt: skip
      if value < least:
        raise InputError(f'{field} = {value}, expected at least {least}')
    self._cfg, self._params = cfg, params
    self._batch, self._context = batch, context
    self._capacity, self._rounds = capacity, rounds
    self._dtype = params.embed_VD.dtype
    self._sampling = Sampling.make(batch) if sampling is None else sampling
    self._stops = stops
    self._cache = _noisy_cache(init_cache, cfg, batch, capacity, self._dtype)

  def compile(
    self,
    drafts: Sequence[DraftModel],
    budgets: Sequence[int | None] | None = None,
  ) -> list[Program]:
    """The rounds of each drafter, ready to be timed.

    Args:
      budgets: of each, rows that a round verifies in all; see `round.step`.

    Raises:
      InputError: the capacity leaves no room for a block; before any of them
        is compiled. Or a budget cannot be packed.
    """
    budgets = [None] * len(drafts) if budgets is None else budgets
    rows = max(draft.drafter.slots for draft in drafts) + 1
    need = self._context + self._rounds + rows
    if need > self._capacity:
      raise InputError(
        f'capacity = {self._capacity}: {self._rounds} rounds of at most {rows} '
        f'rows at a context of {self._context} need {need}'
      )
    mesh = mesh_of(self._params.embed_VD)
    for draft, budget in zip(drafts, budgets, strict=True):
      if budget not in (None, PLAIN):
        check_budget(self._batch, draft.drafter.slots + 1, budget, mesh)
    programs = []
    for draft, budget in zip(drafts, budgets, strict=True):
      make, cfg = draft.drafter.init_cache, draft.drafter.cfg
      sizes = self._batch, self._capacity, self._dtype
      program = Program(draft, _noisy_cache(make, cfg, *sizes), budget)
      program.compiled = self._lower(program).compile()
      programs.append(program)
    return programs

  def time(self, programs: Sequence[Program], repeats: int) -> list[Times]:
    """Times programs, called in turn, after a call of each to warm up."""
    for program in programs:
      self._call(program, program.compiled)
    calls = [
      [self._call(program, program.compiled) for program in programs]
      for _ in range(repeats)
    ]
    return [
      Times(float(np.median(each)), min(each), max(each))
      for each in zip(*calls, strict=True)
    ]

  def trace(self, program: Program, folder: str | os.PathLike[str]) -> str:
    """Profiles one call into `folder`, for TensorBoard and `report.profile`.

    Returns:
      The compiled program that was profiled, as text.
    """
    compiled = program.compiled
    if options := profile.legible():
      compiled = self._lower(program).compile(compiler_options=options)
      self._call(program, compiled)
    profile.record(folder, lambda: self._call(program, compiled))
    return compiled.as_text()

  def _lower(self, program: Program) -> jax.stages.Lowered:
    drafter = program.draft.drafter
    # A program is kept by what is passed, defaults too: without a budget it is
    # the one that `generate` runs.
    budget = {} if program.budget is None else {'budget': program.budget}
    arguments = self._arguments(program)
    return run_rounds.lower(self._cfg, drafter, *arguments, **budget)

  def _call(self, program: Program, compiled: jax.stages.Compiled) -> float:
    """Milliseconds of a round."""
    arguments = jax.block_until_ready(self._arguments(program))
    began = time.perf_counter()
    state = jax.block_until_ready(compiled(*arguments))
    took = time.perf_counter() - began
    self._cache, program.cache = state.target_cache, state.draft_cache
    return 1e3 * took / int(state.rounds_B.max())

  def _arguments(self, program: Program):
    small = _without_caches(
      self._cfg,
      program.draft.drafter,
      self._batch,
      self._context,
      self._capacity,
      self._stops,
      self._dtype,
    )
    # Every field needs a buffer of its own, since the state is donated.
    length_B = small.length_B
    state = dataclasses.replace(
      small,
      target_cache=dataclasses.replace(self._cache, length_B=length_B - 1),
      draft_cache=dataclasses.replace(program.cache, length_B=length_B - 2),
    )
    mesh = mesh_of(self._params.embed_VD)
    state, sampling = shard((state, self._sampling), mesh)
    params = Params(self._params, program.draft.params)
    return params, state, sampling, jnp.int32(self._rounds)


def copy_rate() -> float:
  """Bytes a second that the device reads and writes while it copies."""
  copies = 2 if jax.default_backend() == 'cpu' else 16
  copy = jax.jit(
    lambda x, n: lax.fori_loop(0, n, lambda _, x: x + 1, x), donate_argnums=0
  )
  x = jnp.zeros((_COPIED // 4,), jnp.float32)
  took = []
  for _ in range(4):  # the first one compiles
    jax.block_until_ready(x)
    began = time.perf_counter()
    x = jax.block_until_ready(copy(x, copies))
    took.append(time.perf_counter() - began)
  return 2 * _COPIED * copies / float(np.median(took[1:]))


def read_ms(params: TargetParams, repeats: int) -> list[float]:
  """Milliseconds, by call, of a one-row product with each weight matrix.

  Each waits for the one before it, as in a step of plain decoding, and there
  is nothing else: the least that a program of products takes for the weights.
  """
  matrices = [
    x for x in jax.tree.leaves((params.layers, params.head_VD)) if x.ndim > 1
  ]

  @jax.jit
  def chain(matrices):
    last = jnp.zeros((), matrices[0].dtype)
    for matrix in matrices:
      row = jnp.full((1, matrix.shape[-1]), last)
      last = dense(row, matrix).reshape(-1)[0]
    return last

  took = []
  for _ in range(repeats + 1):  # the first one compiles
    began = time.perf_counter()
    jax.block_until_ready(chain(matrices))
    took.append(1e3 * (time.perf_counter() - began))
  return took[1:]


def noise(shapes, dtype, seed: int = 0):
  """Random arrays in place of a tree of shapes, made on the device one by one.

  Matrices are normal, scaled by fan-in; vectors, which scale, are ones.
  """
  leaves, tree = jax.tree.flatten(shapes)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  made = [
    _normal(key, x.shape, dtype)
    if len(x.shape) > 1
    else jnp.ones(x.shape, dtype)
    for key, x in zip(keys, leaves, strict=True)
  ]
  return jax.tree.unflatten(tree, made)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
  x = jax.random.normal(key, shape, jnp.float32)
  return (x * shape[-1] ** -0.5).astype(dtype)


def _noisy_cache(make, cfg, batch: int, capacity: int, dtype) -> KVCache:
  cache = jax.eval_shape(lambda: make(cfg, batch, capacity, dtype))
  k, v = noise((cache.k, cache.v), dtype)
  return KVCache(k, v, jnp.zeros((batch,), jnp.int32))


@functools.partial(jax.jit, static_argnums=range(7))
def _without_caches(
  cfg: TargetConfig,
  drafter: Drafter,
  batch: int,
  context: int,
  capacity: int,
  stops: int,
  dtype,
) -> DecodeState:
  """A state in the middle of decoding, but for its caches."""
  token_key, feature_key = jax.random.split(jax.random.key(1))
  counts_B = jnp.ones((batch,), jnp.int32)
  state = init_state(
    cfg,
    drafter,
    jax.random.randint(token_key, (batch, capacity), 0, cfg.vocab),
    prompt_length_B=context * counts_B,
    cap_B=(capacity - drafter.slots - 1) * counts_B,
    seed_B=jnp.arange(batch, dtype=jnp.uint32),
    stop_ids_E=jnp.full((stops,), cfg.vocab, jnp.int32),  # no token
    dtype=dtype,
  )
  features_BKP = jax.random.normal(feature_key, state.pending_BKP.shape)
  return dataclasses.replace(
    state,
    target_cache=None,
    draft_cache=None,
    pending_BKP=features_BKP.astype(dtype),
    pending_count_B=counts_B,
  )
