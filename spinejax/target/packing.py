"""Rows of several requests, packed into one static budget.

A padded block gives every request K rows, also those of which fewer are worth
reading. Packed, a request takes the rows that it needs, and the products with
weights, which are what many rows cost, take as long as the budget is large
(DScale's and SGLang's compact verification; a token's arithmetic does not
depend on where in the batch it lies).

Attention alone stays padded: around it rows are gathered into [B, K] and back.
It reads each request's own cache, in the kernel a tile of 64 heads x rows at a
time however few of them count, so it takes as long for one row as for K; and a
kernel that wrote packed rows would need masks for the rows of the neighbour.
The two gathers move the activations of a layer once, a percent of its weights.
"""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.axes import Count_B
from spinejax.errors import InputError
from spinejax.sharding import DATA


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packing:
  """Which row of the budget holds which row of which request.

  Attributes:
    source_Q: for each packed row, its place in [B, K], flattened. Rows that
      are left over hold a copy of some row, which nobody reads.
    place_BK: for each row of a request, its packed row. Rows that are not
      verified have another one's.
    request_Q: the request of each packed row.
  """

  source_Q: jax.Array
  place_BK: jax.Array
  request_Q: jax.Array

  def pack(self, x: jax.Array) -> jax.Array:
    """x [B, K, ...] as packed rows [Q, ...]."""
    return jnp.take(
      x.reshape(-1, *x.shape[2:]), self.source_Q, axis=0, mode='clip'
    )

  def unpack(self, x: jax.Array) -> jax.Array:
    """Packed rows [Q, ...] as [B, K, ...]; rows not verified hold others."""
    return jnp.take(x, self.place_BK, axis=0, mode='clip')


def pack(rows_B: Count_B, rows: int, budget: int) -> Packing:
  """Packs the first `rows_B` of `rows` rows of every request, in order.

  Args:
    rows_B: 0..rows each, `budget` in all at most (`fit` sees to it).
    rows: K.
    budget: Q.
  """
  ends_B = jnp.cumsum(rows_B)
  starts_B = ends_B - rows_B
  at_Q = jnp.arange(budget)
  # Of requests that begin at one row, all but the last are empty.
  begun_Q = jnp.zeros((budget,), jnp.int32).at[starts_B].add(1, mode='drop')
  request_Q = jnp.cumsum(begun_Q) - 1
  row_Q = jnp.minimum(at_Q - starts_B[request_Q], rows - 1)
  last_B1 = jnp.maximum(rows_B - 1, 0)[:, None]
  row_BK = jnp.minimum(jnp.arange(rows), last_B1)
  place_BK = jnp.minimum(starts_B[:, None] + row_BK, budget - 1)
  return Packing(request_Q * rows + row_Q, place_BK, request_Q)


def fit(
  limit_B: Count_B, live_B: jax.Array, slots: int, budget: int
) -> jax.Array:
  """Rows of every request that fit the budget: its anchor, and proposals.

  Where they do not, the longest are cut, all to one length, and rows left over
  go to the first of those. This depends on nothing but the limits: as long as
  they were set without looking at the tokens of the round, so is the cut, and
  the law of the output stays the target's.

  Args:
    limit_B: proposals to verify; what is outside 0..slots is clipped.
    live_B: requests that are not done; the others take no row.
    slots: S.
    budget: rows of all requests; at least one for each (`check_budget`).

  Returns:
    Rows, 1 + proposals, of each request; 0 for those that are done.
  """
  limit_B = jnp.clip(limit_B, 0, slots)

  def rows(most):
    return jnp.where(live_B, 1 + jnp.minimum(limit_B, most), 0)

  totals = jax.vmap(lambda most: jnp.sum(rows(most)))(jnp.arange(slots + 1))
  most = jnp.sum(totals <= budget) - 1
  kept_B = rows(most)
  cut_B = live_B & (limit_B > most)
  left = budget - jnp.sum(kept_B)
  return kept_B + (cut_B & (jnp.cumsum(cut_B) <= left))


def check_budget(batch: int, rows: int, budget: int, mesh) -> None:
  """Refuses a budget that cannot be packed.

  Args:
    batch: requests, done ones included.
    rows: K.
    budget: rows in all.
    mesh: that the requests lie on, or None.

  Raises:
    InputError: it has not a row for each request, or more than there are; or
      the requests lie on several devices, whose rows cannot be packed.
  """
  whole = isinstance(budget, int) and not isinstance(budget, bool)
  if not whole or not batch <= budget <= batch * rows:
    raise InputError(
      f'budget = {budget!r}, expected {batch}..{batch * rows}: {batch} '
      f'requests of {rows} rows at most'
    )
  if mesh is not None and mesh.shape[DATA] > 1:
    raise InputError(
      f'budget = {budget}: requests lie on the mesh axis '
      f'{DATA}={mesh.shape[DATA]}, over which rows cannot be packed'
    )
