"""Timing rounds of decoding at a context that stays where it is.

What is timed is the program that decodes, `loop.run_rounds`, a number of
rounds in one call, on caches filled with noise: the time of a round does not
depend on what it computes (though zeros may be faster than numbers).
"""

import concurrent.futures
import dataclasses
import functools
import os
import time
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spinejax.decode import forced
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
  """A drafter's rounds, compiled.

  Attributes:
    budget: rows that a round verifies in all, packed; None pads.
    survival_S: what is accepted is drawn from this, see `forced`; may change
      from call to call. None: the target judges.
  """

  draft: DraftModel
  budget: int | None = None
  survival_S: np.ndarray | None = None
  cache: Hashable = None  # of its draft cache among those of a bench
  compiled: jax.stages.Compiled | None = None


class Bench:
  """Rounds of one target at one batch size.

  The target's cache serves all programs in turn, and so does a draft cache
  those drafters whose caches are alike: each is donated it and hands it on.
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
    self._draft_caches: dict[tuple, KVCache] = {}

  def compile(
    self,
    drafts: Sequence[DraftModel],
    budgets: Sequence[int | None] | None = None,
    forces: bool = False,
  ) -> list[Program]:
    """The rounds of each drafter, ready to be timed.

    Args:
      budgets: of each, rows that a round verifies in all; see `round.step`.
      forces: what is accepted is given (`Program.survival_S`), at first
        nothing.

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
    programs, lowered = [], []
    for draft, budget in zip(drafts, budgets, strict=True):
      none_S = np.zeros(draft.drafter.slots) if forces else None
      program = Program(draft, budget, none_S, self._draft_cache(draft))
      programs.append(program)
      lowered.append(self._lower(program))
    with concurrent.futures.ThreadPoolExecutor() as pool:
      for program, done in zip(
        programs, pool.map(jax.stages.Lowered.compile, lowered), strict=True
      ):
        program.compiled = done
    return programs

  def start(
    self, program: Program, context: int | None = None,
    rounds: int | None = None,
  ) -> DecodeState:  # fmt: skip
    """Begins a call, and does not wait for its end.

    Args:
      context, rounds: of this call, in the place of the bench's own; whoever
        gives them sees to it that the capacity holds them.

    Returns:
      The state that the call ends with, without caches.
    """
    arguments = self._arguments(program, context, rounds)
    return self._begin(program, program.compiled, arguments)

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
    how = {} if program.budget is None else {'budget': program.budget}
    if program.survival_S is not None:
      how['step'] = forced.step
    arguments = self._arguments(program)
    return run_rounds.lower(self._cfg, drafter, *arguments, **how)

  def _call(self, program: Program, compiled: jax.stages.Compiled) -> float:
    """Milliseconds of a round."""
    arguments = jax.block_until_ready(self._arguments(program))
    began = time.perf_counter()
    state = jax.block_until_ready(self._begin(program, compiled, arguments))
    took = time.perf_counter() - began
    return 1e3 * took / int(state.rounds_B.max())

  def _begin(self, program, compiled, arguments) -> DecodeState:
    state = compiled(*arguments)
    self._cache = state.target_cache
    self._draft_caches[program.cache] = state.draft_cache
    return dataclasses.replace(state, target_cache=None, draft_cache=None)

  def _draft_cache(self, draft: DraftModel) -> Hashable:
    """Makes a cache for the drafter if there is none; what it is kept by."""
    make, cfg = draft.drafter.init_cache, draft.drafter.cfg
    sizes = self._batch, self._capacity, self._dtype
    shapes = jax.eval_shape(lambda: make(cfg, *sizes))
    leaves, tree = jax.tree.flatten(shapes)
    key = tree, *((x.shape, x.dtype) for x in leaves)
    if key not in self._draft_caches:
      self._draft_caches[key] = _noisy_cache(make, cfg, *sizes)
    return key

  def _arguments(self, program: Program, context=None, rounds=None):
    small = _without_caches(
      self._cfg,
      program.draft.drafter,
      self._batch,
      self._capacity,
      self._stops,
      self._dtype,
      np.int32(self._context if context is None else context),
    )
    draft_cache = self._draft_caches[program.cache]
    # Every field needs a buffer of its own, since the state is donated.
    length_B = small.length_B
    state = dataclasses.replace(
      small,
      target_cache=dataclasses.replace(self._cache, length_B=length_B - 1),
      draft_cache=dataclasses.replace(draft_cache, length_B=length_B - 2),
    )
    mesh = mesh_of(self._params.embed_VD)
    state, sampling = shard((state, self._sampling), mesh)
    extra = program.survival_S
    if extra is not None:
      extra = jnp.asarray(extra, jnp.float32)
    params = Params(self._params, program.draft.params, extra)
    number = jnp.int32(self._rounds if rounds is None else rounds)
    return params, state, sampling, number


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


@functools.partial(jax.jit, static_argnums=range(6))
def _without_caches(
  cfg: TargetConfig,
  drafter: Drafter,
  batch: int,
  capacity: int,
  stops: int,
  dtype,
  context: jax.Array,
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
