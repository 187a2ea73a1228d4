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
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import (
  KVCache,
  TargetParams,
  forward,
  init_cache,
  unembed,
)

_ROWS = 64

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
  prompt: Sequence[int],
  emitted: Sequence[int],
  capacity: int,
) -> np.ndarray:
  """Logit of the target's best token minus that of each emitted one.

  Args:
    prompt, emitted: token ids; the prompt has at least one.
    capacity: rows of the cache; calls with the same one share a program.
  """
  ids = np.concatenate([prompt, emitted]).astype(np.int32)
  total = -(-(capacity + 1) // _ROWS) * _ROWS
  fed = np.zeros((1, total), np.int32)
  fed[0, : len(ids) - 1] = ids[:-1]
  wanted = np.zeros((1, total), np.int32)
  wanted[0, : len(ids) - 1] = ids[1:]
  dtype = target.params.embed_VD.dtype
  cache = init_cache(target.cfg, 1, total, dtype)
  found = []
  for row in range(0, len(ids) - 1, _ROWS):
    part = slice(row, row + _ROWS)
    gap_BQ, cache = _chunk(
      target.cfg,
      target.params,
      jnp.asarray(fed[:, part]),
      jnp.asarray(wanted[:, part]),
      cache,
    )
    found.append(np.asarray(gap_BQ)[0])
  return np.concatenate(found)[len(prompt) - 1 : len(ids) - 1]


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
  return jnp.max(logits, axis=-1) - chosen, out.cache.advance(
    jnp.full((fed_BQ.shape[0],), fed_BQ.shape[1], jnp.int32)
  )


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
  exact, ties, wrong, tie_tokens, audited, worst = 0, 0, 0, 0, 0, 0.0
  for ids, a, b in zip(prompts, reference, emitted, strict=True):
    same = np.array_equal(a, b)
    exact += same
    if same and dtype == 'float32':
      continue
    gap = gaps(target, ids, b, capacity)
    audited += 1
    tie_tokens += int((gap > 0).sum())
    worst = max(worst, float(gap.max()))
    if same:
      continue
    shared = min(len(a), len(b))
    # One that stopped where the other went on with the same tokens is cut.
    cut = np.array_equal(a[:shared], b[:shared])
    ok = not cut and gap.max() <= TIE[dtype]
    ties, wrong = ties + ok, wrong + (not ok)
  return Audit(exact, ties, wrong, tie_tokens, worst, audited)
