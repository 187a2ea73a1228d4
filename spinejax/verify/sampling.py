"""The target's sampling law: temperature, top-k, top-p, per request."""

import dataclasses
import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spinejax.axes import Keys_B, Seed_B
from spinejax.errors import InputError
from spinejax.top import top_k as top_k_of

# A top-k of so many is searched for: 32 passes over the logits cost more.
_FEW = 64
# Beyond, logits / temperature overflow float32, or every token is alike.
_COLDEST, _HOTTEST = 1e-4, 1e4


class Stream(enum.IntEnum):
  """Independent random streams of one round.

  Sharing noise between draft, acceptance and residual is a known way to lose
  losslessness (vllm-project/vllm #54282).
  """

  DRAFT = 0
  ACCEPT = 1
  RESIDUAL = 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampling:
  """How each request samples.

  Attributes:
    temperature_B: float32; 0 is greedy for that request.
    top_k_B: int32; keep the k most likely tokens; 0 keeps all.
    top_p_B: float32; nucleus mass; 1 keeps all.
    greedy: static; all requests are greedy and the other fields are unused.
  """

  temperature_B: jax.Array
  top_k_B: jax.Array
  top_p_B: jax.Array
  greedy: bool = dataclasses.field(metadata={'static': True})

  @classmethod
  def make(
    cls,
    batch: int,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
  ) -> 'Sampling':
    """Settings for a batch: one value for all requests, or one for each.

    Raises:
      InputError: a setting is out of its range, or there are not `batch`.
    """
    temperature_B, top_k_B, top_p_B = check_sampling(
      temperature, top_k, top_p, batch
    )
    return cls(
      temperature_B=jnp.asarray(temperature_B),
      top_k_B=jnp.asarray(top_k_B),
      top_p_B=jnp.asarray(top_p_B),
      greedy=not temperature_B.any(),
    )

  def of(self, request_Q: jax.Array) -> 'Sampling':
    """The settings of the request of each row."""
    return jax.tree.map(lambda x_B: x_B[request_Q], self)


def check_sampling(
  temperature: float | Sequence[float],
  top_k: int | Sequence[int],
  top_p: float | Sequence[float],
  batch: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The fields of `Sampling` on the host.

  Raises:
    InputError: as `Sampling.make`.
  """
  # The ranges are asked for, not their complements, so that NaN fails.
  temperature_B = _per_request(
    'temperature', temperature, batch, np.float32,
    lambda x: x == 0 or _COLDEST <= x <= _HOTTEST,
    f'0 (greedy) or {_COLDEST:g}..{_HOTTEST:g}',
  )  # fmt: skip
  top_k_B = _per_request(
    'top_k', top_k, batch, np.int32,
    lambda x: 0 <= x < 2**31 and x == int(x),
    'a whole number, at least 0 (0 keeps all)',
  )  # fmt: skip
  top_p_B = _per_request(
    'top_p', top_p, batch, np.float32, lambda x: (x > 0) & (x <= 1),
    'above 0 and at most 1',
  )  # fmt: skip
  return temperature_B, top_k_B, top_p_B


def _per_request(field, value, batch, dtype, fits, expected) -> np.ndarray:
  """One value a request, each checked."""
  values = np.asarray(value)
  if values.dtype.kind not in 'iuf':
    raise InputError(f'{field} = {value!r:.60}, expected a number')
  if values.ndim and values.shape != (batch,):
    raise InputError(
      f'{field} has {values.size} values, expected one or {batch}'
    )
  for one in values.reshape(-1).tolist():
    if not fits(one):
      raise InputError(f'{field} = {one}, expected {expected}')
  return np.broadcast_to(values, (batch,)).astype(dtype)


def round_keys(seed_B: Seed_B, position_B: jax.Array, stream: Stream) -> Keys_B:
  """One key a request: a function of its seed, position and stream alone.

  So what a request draws depends neither on its neighbours in the batch nor
  on its place in it.
  """

  def key(seed, position):
    at = jax.random.fold_in(jax.random.key(seed), position)
    return jax.random.fold_in(at, int(stream))

  return jax.vmap(key)(seed_B, position_B)


def peak(logits: jax.Array, sampling: Sampling) -> jax.Array:
  """Probability of the best entry of logits [B, ..., V], float32 [B, ...].

  At the request's temperature, or at 1 where that is 0. A drafter without a
  confidence of its own takes it for one.
  """
  logits = logits.astype(jnp.float32)
  if not sampling.greedy:
    temperature = sampling.temperature_B.reshape(
      (-1,) + (1,) * (logits.ndim - 1)
    )
    logits = logits / jnp.where(temperature > 0, temperature, 1.0)
  return jnp.exp(jnp.max(logits, -1) - jax.nn.logsumexp(logits, -1))


def law(logits: jax.Array, sampling: Sampling) -> jax.Array:
  """The sampling distribution of logits [B, ..., V], float32, same shape.

  In order: divide by the temperature; keep the top k; softmax; keep each token
  whose more likely ones hold less than top-p of the mass; renormalise (the
  order of z-lab/dflash `model.py`). Tokens that tie with the last one kept are
  kept too. Temperature 0 gives a one-hot law at the argmax.
  """
  wide = (-1,) + (1,) * (logits.ndim - 1)
  temperature = sampling.temperature_B.reshape(wide)
  top_k, top_p = sampling.top_k_B.reshape(wide), sampling.top_p_B.reshape(wide)
  logits = logits.astype(jnp.float32)
  hot = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
  scaled = logits / jnp.where(temperature > 0, temperature, 1.0)

  def filtered(scaled):
    V = scaled.shape[-1]
    down = -jnp.sort(-scaled, axis=-1)
    k = jnp.where(top_k > 0, jnp.minimum(top_k, V), V)
    kth = jnp.take_along_axis(down, jnp.broadcast_to(
      k - 1, (*scaled.shape[:-1], 1)), -1)  # fmt: skip
    probs = jax.nn.softmax(jnp.where(down >= kth, down, -jnp.inf), axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs
    # Rounding may carry the sum to 1 before the tail: 1 must mean all of it.
    kept = ((before < top_p) | (top_p >= 1)) & (down >= kth)
    # Rank 0 is always kept, also when top_p is 0.
    last = jnp.maximum(jnp.sum(kept, axis=-1, keepdims=True), 1) - 1
    lowest = jnp.take_along_axis(down, last, -1)
    return jnp.where(scaled >= lowest, scaled, -jnp.inf)

  def above_kth(scaled):
    kth = kth_largest(scaled, jnp.where(top_k > 0, top_k, scaled.shape[-1]))
    return jnp.where(scaled >= kth, scaled, -jnp.inf)

  def above_kth_of_few(scaled):
    best = top_k_of(scaled, min(_FEW, scaled.shape[-1]))[0]
    place = jnp.clip(top_k - 1, 0, best.shape[-1] - 1)
    place = jnp.broadcast_to(place, (*best.shape[:-1], 1))
    kth = jnp.take_along_axis(best, place, axis=-1)
    return jnp.where((scaled >= kth) | (top_k == 0), scaled, -jnp.inf)

  # The sort is the larger part of a verification, and top-k alone can do
  # without; skip both when nobody asks.
  nucleus, most = jnp.any(sampling.top_p_B < 1), jnp.max(sampling.top_k_B)
  which = jnp.where(most > _FEW, 2, jnp.minimum(most, 1))
  scaled = lax.switch(
    jnp.where(nucleus, 3, which),
    [lambda x: x, above_kth_of_few, above_kth, filtered],
    scaled,
  )
  return jnp.where(temperature > 0, jax.nn.softmax(scaled, axis=-1), hot)


def kth_largest(x: jax.Array, k: jax.Array) -> jax.Array:
  """The k-th largest entry along the last axis, which is kept; exact.

  Found bit by bit, by counting: 32 passes over x in place of a sort, and on a
  mesh sums of counts in place of gathered logits.

  Args:
    x: float32 [..., V], no NaN.
    k: integers >= 1, broadcast to [..., 1]; V where they are larger.
  """
  k = jnp.broadcast_to(jnp.minimum(k, x.shape[-1]), (*x.shape[:-1], 1))
  sign = jnp.uint32(1 << 31)
  bits = lax.bitcast_convert_type(x, jnp.uint32)
  # Unsigned integers in the order of the floats.
  ordered = jnp.where(bits >= sign, ~bits, bits | sign)

  def add_bit(i, found):
    tried = found | (sign >> i.astype(jnp.uint32))
    enough = jnp.sum(ordered >= tried, axis=-1, keepdims=True) >= k
    return jnp.where(enough, tried, found)

  found = lax.fori_loop(0, 32, add_bit, jnp.zeros(k.shape, jnp.uint32))
  bits = jnp.where(found >= sign, found ^ sign, ~found)
  return lax.bitcast_convert_type(bits, jnp.float32)


def gumbel(keys_B: Keys_B, shape: tuple[int, ...]) -> jax.Array:
  """Gumbel noise, float32 [B, *shape]: argmax(log p + noise) samples p."""
  return jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys_B)
