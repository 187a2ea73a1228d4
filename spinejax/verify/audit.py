"""Checking emitted tokens against the target, by teacher forcing.

A matrix product's last bits depend on its row count, so two exact greedy
decoders can part where the target's two best tokens are nearly tied. An audit
says how far below its best token each emitted one was.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.axes import Tokens_BQ
from spinejax.sharding import DATA, constrain, shard
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import (
  KVCache,
  TargetParams,
  forward,
  init_cache,
  unembed,
)

_ROWS = 64  # of a chunk
_BATCH = 32  # prompts teacher-forced at once

# Below this gap, in logits, two tokens count as tied. float32: the last bits
# of a product; bfloat16: those of hidden states that make logits of 20 to 30.
TIE = {'float32': 1e-3, 'bfloat16': 0.5}


@dataclasses.dataclass(frozen=True)
class Audit:
  """Greedy outputs against a reference's and against the target itself.

  Attributes:
    exact: prompts identical to the reference.
    ties: prompts that differ, each of whose tokens is within the tie
      threshold of the target's best.
    wrong: prompts that differ otherwise; a bug.
    tie_tokens: emitted tokens that are not the target's teacher-forced best.
    worst_gap: the largest gap of those, in logits.
    audited: prompts that were teacher-forced.
  """

  exact: int
  ties: int
  wrong: int
  tie_tokens: int
  worst_gap: float
  audited: int


def gaps(
  target: Target,
  prompts: Sequence[Sequence[int]],
  emitted: Sequence[np.ndarray],
  capacity: int,
) -> list[np.ndarray]:
  """Logit of the target's best token minus that of each emitted one.

  Args:
    prompts, emitted: token ids; a prompt has at least one.
    capacity: rows of the cache; calls with the same one share a program.

  Returns:
    One array a prompt, as long as what it emitted.
  """
  rows = -(-capacity // _ROWS) * _ROWS
  batch = min(_BATCH, len(prompts))
  if target.mesh is not None:  # a multiple of the devices it is split over
    batch += -batch % target.mesh.shape[DATA]
  found = []
  for first in range(0, len(prompts), batch):
    part = slice(first, first + batch)
    ids = [
      np.concatenate([p, e]).astype(np.int32)
      for p, e in zip(prompts[part], emitted[part], strict=True)
    ]
    fed_BT, wanted_BT = np.zeros((2, batch, rows), np.int32)
    for b, row in enumerate(ids):
      fed_BT[b, : len(row) - 1], wanted_BT[b, : len(row) - 1] = (
        row[:-1],
        row[1:],
      )
    gap_BT = _teacher_force(target, fed_BT, wanted_BT, max(map(len, ids)) - 1)
    found += [
      gap_BT[b, len(p) - 1 : len(p) - 1 + len(e)]
      for b, (p, e) in enumerate(zip(prompts[part], emitted[part], strict=True))
    ]
  return found


def _teacher_force(target, fed_BT, wanted_BT, needed: int) -> np.ndarray:
  """Gaps of the first `needed` rows, chunk by chunk."""
  batch, capacity = fed_BT.shape
  dtype = target.params.embed_VD.dtype
  cache = init_cache(target.cfg, batch, capacity, dtype)
  cache = shard(cache, target.mesh)
  found = []
  for row in range(0, needed, _ROWS):
    part = slice(row, row + _ROWS)
    gap_BQ, cache = _chunk(
      target.cfg,
      target.params,
      jnp.asarray(fed_BT[:, part]),
      jnp.asarray(wanted_BT[:, part]),
      cache,
    )
    found.append(np.asarray(gap_BQ))
  return np.concatenate(found, axis=1)


@functools.partial(
  jax.jit, static_argnames=('cfg',), donate_argnames=('cache',)
)
def _chunk(
  cfg: TargetConfig,
  params: TargetParams,
  fed_BQ: Tokens_BQ,
  wanted_BQ: Tokens_BQ,
  cache: KVCache,
):
  out = forward(cfg, params, fed_BQ, cache)
  logits = unembed(out.hidden_BQD, params.head_VD)
  chosen = jnp.take_along_axis(logits, wanted_BQ[..., None], axis=-1)[..., 0]
  cache = out.cache.advance(
    jnp.full((fed_BQ.shape[0],), fed_BQ.shape[1], jnp.int32)
  )
  return jnp.max(logits, axis=-1) - chosen, constrain(cache)


def audit(
  target: Target,
  prompts: Sequence[Sequence[int]],
  reference: Sequence[np.ndarray],
  emitted: Sequence[np.ndarray],
  capacity: int,
) -> Audit:
  """Checks greedy outputs, prompt by prompt.

  In float32 only the prompts that differ from the reference are
  teacher-forced; in other dtypes all are.
  """
  dtype = str(target.params.embed_VD.dtype)
  same = [np.array_equal(a, b) for a, b in zip(reference, emitted, strict=True)]
  suspects = [i for i, s in enumerate(same) if not s or dtype != 'float32']
  found = gaps(
    target,
    [prompts[i] for i in suspects],
    [emitted[i] for i in suspects],
    capacity,
  ) if suspects else []  # fmt: skip
  ties = wrong = 0
  for i, gap in zip(suspects, found, strict=True):
    if same[i]:
      continue
    a, b = reference[i], emitted[i]
    shared = min(len(a), len(b))
    # One that stopped where the other went on with the same tokens is cut.
    cut = np.array_equal(a[:shared], b[:shared])
    tied = bool(not cut and gap.max() <= TIE[dtype])
    ties, wrong = ties + tied, wrong + (not tied)
  return Audit(
    exact=sum(same),
    ties=ties,
    wrong=wrong,
    tie_tokens=sum(int((gap > 0).sum()) for gap in found),
    worst_gap=max((float(gap.max()) for gap in found), default=0.0),
    audited=len(suspects),
  )
