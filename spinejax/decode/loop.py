"""The compiled forms of a round: prefill chunk and on-device loop.

Every compile variant of decoding is made here: one per (target shape,
drafter, batch, capacity bucket, greedy or not, budget). State is donated.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from spinejax.decode import round as rounds
from spinejax.decode.schedule import PLAIN, Schedule
from spinejax.decode.state import DecodeState, init_state
from spinejax.drafters.base import Drafter
from spinejax.sharding import constrain
from spinejax.target.config import TargetConfig
from spinejax.target.memory import PREFILL_CHUNK
from spinejax.target.model import KVCache
from spinejax.verify.sampling import Sampling

_BUCKET, _SMALL, _STEP = 128, 1024, 512


def capacity_bucket(tokens: int) -> int:
  """A capacity of few possible values that holds `tokens` rows.

  Multiples of 128 up to 1024, of 512 up to 4096, then four sizes in each
  octave.
  """
  if tokens <= _SMALL:
    return -(-tokens // _BUCKET) * _BUCKET
  step = max(_STEP, (1 << (tokens - 1).bit_length()) // 8)
  return -(-tokens // step) * step


@functools.partial(jax.jit, static_argnames=('cfg', 'drafter', 'dtype'))
def new_state(
  cfg: TargetConfig, drafter: Drafter, dtype, **arrays: jax.Array
) -> DecodeState:
  """`state.init_state`, compiled: on a mesh no device holds a whole cache."""
  return constrain(init_state(cfg, drafter, dtype=dtype, **arrays))


@functools.partial(
  jax.jit,
  static_argnames=('cfg', 'drafter', 'chunk'),
  donate_argnames=('state',),
)
def prefill_chunk(
  cfg: TargetConfig,
  drafter: Drafter,
  params: rounds.Params,
  state: DecodeState,
  chunk: int = PREFILL_CHUNK,
  limit_B: jax.Array | None = None,
) -> DecodeState:
  """`round.prefill`, compiled; donates the state."""
  return constrain(rounds.prefill(cfg, drafter, params, state, chunk, limit_B))


@functools.partial(
  jax.jit,
  static_argnames=('cfg', 'drafter', 'budget', 'step', 'rows'),
  donate_argnames=('state',),
)
def run_rounds(
  cfg: TargetConfig,
  drafter: Drafter,
  params: rounds.Params,
  state: DecodeState,
  sampling: Sampling,
  max_rounds: jax.Array,
  enough: jax.Array | None = None,
  budget: int | None = None,
  schedule: Schedule | None = None,
  step: Callable[..., rounds.Round] = rounds.step,
  rows: int | None = None,
) -> DecodeState:
  """Rounds until every request is done, at most `max_rounds`, on the device.

  With `enough`, until so many requests are done. Nothing crosses to the host
  inside. Donates the state.

  Args:
    budget: rows verified in all in a round; see `round.step`. `PLAIN` drafts
      nothing, but keeps the drafter ready; see `round.plain`.
    schedule: what the rounds verify, in the place of a budget.
    step: a module-level function that takes what `round.step` takes first.
    rows: of the state's first rows only; a round costs what it costs at that
      batch size. They are copied out and back, once a call. `sampling` has as
      many.
  """
  whole = state
  if rows is not None:
    state = _batch(lambda x: x[:rows], state)

  def unfinished(carry):
    state, ran = carry
    if enough is None:
      return (ran < max_rounds) & ~jnp.all(state.done_B)
    return (ran < max_rounds) & (jnp.sum(state.done_B) < enough)

  def body(carry):
    state, ran = carry
    if budget == PLAIN:
      state, more = rounds.plain(
        cfg, drafter, params, state, sampling,
        lambda state, more: unfinished((state, ran + more)),
      )  # fmt: skip
      return constrain(state), ran + more
    state = step(
      cfg, drafter, params, state, sampling, budget=budget, schedule=schedule
    ).state
    return constrain(state), ran + 1

  state = lax.while_loop(unfinished, body, (state, jnp.int32(0)))[0]
  if rows is not None:
    state = _batch(lambda x, some: x.at[:rows].set(some), whole, state)
  return state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Watched:
  """What a drafter said of its proposals in some rounds, and what came.

  The rounds lead: confidence is [rounds, B, S], the others [rounds, B].
  """

  confidence: jax.Array
  accepted: jax.Array
  live: jax.Array


@functools.partial(
  jax.jit,
  static_argnames=('cfg', 'drafter', 'count'),
  donate_argnames=('state',),
)
def watch_rounds(
  cfg: TargetConfig,
  drafter: Drafter,
  params: rounds.Params,
  state: DecodeState,
  sampling: Sampling,
  count: int,
) -> tuple[DecodeState, Watched]:
  """`count` rounds that verify everything, and what there was to see.

  Donates the state.
  """

  def body(state, _):
    done = rounds.step(cfg, drafter, params, state, sampling)
    seen = Watched(
      done.proposal.confidence_BS, done.verdict.accepted_B, ~state.done_B
    )
    return constrain(done.state), seen

  return lax.scan(body, state, length=count)


@functools.partial(jax.jit, donate_argnames=('state',))
def put_requests(
  state: DecodeState, new: DecodeState, slots: jax.Array
) -> DecodeState:
  """Puts the requests of `new` into the given rows of `state`.

  A request whose row is past the end is dropped. Both have one capacity and
  the same stop tokens. Donates `state`.
  """
  return constrain(
    _batch(lambda x, part: x.at[slots].set(part, mode='drop'), state, new)
  )


@functools.partial(
  jax.jit, static_argnames=('cfg', 'drafter'), donate_argnames=('state',)
)
def begin_requests(
  cfg: TargetConfig,
  drafter: Drafter,
  state: DecodeState,
  chosen_B: jax.Array,
  **arrays: jax.Array,
) -> DecodeState:
  """Puts prompts that are still to be read into the chosen rows.

  Args:
    arrays: of `init_state`, all rows of them; those of the chosen are used.
  """
  dtype = state.pending_BKP.dtype
  new = init_state(
    cfg, drafter, stop_ids_E=state.stop_ids_E, dtype=dtype, **arrays
  )

  def choose(x, fresh):
    if x is fresh:
      return x
    chosen = chosen_B.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(chosen, fresh, x)

  # What is in the caches stays there, beyond the length.
  new = dataclasses.replace(
    new,
    target_cache=_emptied(state.target_cache),
    draft_cache=_emptied(state.draft_cache),
  )
  return constrain(_batch(choose, state, new))


@functools.partial(jax.jit, donate_argnames=('state',))
def end_requests(state: DecodeState, ended_B: jax.Array) -> DecodeState:
  """Ends requests where they are; donates the state."""
  done_B = state.done_B | ended_B
  return constrain(dataclasses.replace(state, done_B=done_B))


@functools.partial(jax.jit, static_argnames='width')
def tokens_from(
  tokens_BT: jax.Array, start_B: jax.Array, width: int
) -> jax.Array:
  """Of each request the tokens from `start_B` on, `width` of them."""
  at = start_B[:, None] + jnp.arange(width)
  return jnp.take_along_axis(
    tokens_BT, jnp.minimum(at, tokens_BT.shape[1] - 1), axis=1
  )


def _batch(function, *states: DecodeState) -> DecodeState:
  """Maps every array that has a row for each request."""
  done = jax.tree.map(
    function, *(dataclasses.replace(s, stop_ids_E=None) for s in states)
  )
  return dataclasses.replace(done, stop_ids_E=states[0].stop_ids_E)


def _emptied(cache: KVCache) -> KVCache:
  return dataclasses.replace(cache, length_B=jnp.zeros_like(cache.length_B))
