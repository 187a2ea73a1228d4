"""Operations and bytes of prefill, steps, verification and drafts, by shape.

*Modelled*: products only, each weight read once a pass, and what is read and
written of keys and values. Softmax, norms and activations that stay on the
chip are left out: they are under 2 % of a compiled program's own count.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.target.config import TargetConfig, layer_weights
from spinejax.target.memory import kv_bytes

# Of these weights of a drafter a few rows are taken; those, DSpine uses in
# every layer.
_TABLES = ('before_VE', 'before_VR', 'after_VR', 'codes_VR')
_SHARED = ('message_MR', 'receiver_MR', 'predecessor_MR')


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a pass needs, of all requests together.

  Attributes:
    product_flops: floating-point operations with weights, the head's included.
    attention_flops: those of queries with keys, and of values.
    weight_bytes: weights, read once.
    kv_bytes: keys and values, read and written.
  """

  product_flops: float = 0.0
  attention_flops: float = 0.0
  weight_bytes: float = 0.0
  kv_bytes: float = 0.0

  @property
  def flops(self) -> float:
    return self.product_flops + self.attention_flops

  @property
  def bytes(self) -> float:
    return self.weight_bytes + self.kv_bytes

  def __add__(self, other: Cost) -> Cost:
    one, two = dataclasses.astuple(self), dataclasses.astuple(other)
    return Cost(*(a + b for a, b in zip(one, two, strict=True)))


def prefill(
  cfg: TargetConfig, batch: int, tokens: int, cached: int = 0, dtype='bfloat16'
) -> Cost:
  """Reading `tokens` more prompt tokens a request behind `cached` ones.

  No token is emitted: the last prompt token is the first anchor.
  """
  return _target_pass(cfg, batch, tokens, cached, 0, dtype)


def step(
  cfg: TargetConfig, batch: int, context: int, rows: int = 1, dtype='bfloat16'
) -> Cost:
  """A plain decoding step, or the verification of a block of `rows`.

  Args:
    context: tokens of each request before the block.
  """
  return _target_pass(cfg, batch, rows, context, rows, dtype)


def _target_pass(cfg, batch, rows, context, logit_rows, dtype) -> Cost:
  item = jnp.dtype(dtype).itemsize
  layers, head = cfg.layers * layer_weights(cfg), cfg.vocab * cfg.width
  # Row q sees the context, the rows before it, and itself.
  seen = rows * context + rows * (rows + 1) / 2
  return Cost(
    2.0 * batch * (rows * layers + logit_rows * head),
    4.0 * batch * cfg.layers * cfg.heads * cfg.head_dim * seen,
    item * (layers + head * (logit_rows > 0)),
    kv_bytes(cfg, batch, context + rows, dtype)
    + kv_bytes(cfg, batch, rows, dtype),
  )


def draft(
  cfg, weights, target: TargetConfig, batch: int, context: int,
  tokens: int = 1, dtype='bfloat16',
) -> Cost:  # fmt: skip
  """Proposing a block, and taking in the tokens of the last round.

  Args:
    cfg: the drafter's config.
    weights: its parameters, or their shapes; None for a drafter that has none,
      which costs nothing.
    target: whose head the proposals go through.
    tokens: emitted by each request in the last round.
  """
  if weights is None:
    return Cost()
  item = jnp.dtype(dtype).itemsize
  products = draft_products(cfg, weights, batch * tokens, batch)
  head = target.vocab * target.width
  seen = cfg.block * (context + cfg.block)
  read = sum(
    x.size
    for path, x in jax.tree.leaves_with_path(weights)
    if _name(path) not in _TABLES
  )
  return Cost(
    2.0 * (products + batch * cfg.slots * head),
    4.0 * batch * cfg.layers * cfg.heads * cfg.head_dim * seen,
    item * (read + head),
    kv_bytes(cfg, batch, context + tokens, dtype)
    + kv_bytes(cfg, batch, tokens, dtype),
  )


def draft_products(cfg, weights, tokens: int, blocks: int) -> int:
  """Multiplications of a drafter's weights, the target's head left out.

  The draft layers run on the rows of the blocks, the projections of the
  context on the tokens; a low-rank correction of the logits on the slots that
  propose.
  """
  # Each token is also a row of keys and values in every draft layer.
  count = tokens * cfg.layers * 2 * cfg.width * cfg.kv_heads * cfg.head_dim
  rows = blocks * cfg.block
  runs = {'fc_DP': tokens, 'up_VE': blocks * cfg.slots}
  runs |= dict.fromkeys(_TABLES, 0) | dict.fromkeys(_SHARED, cfg.layers * rows)
  for path, x in jax.tree.leaves_with_path(weights):
    if len(x.shape) > 1:
      count += runs.get(_name(path), rows) * x.size
  return count


def _name(path) -> str:
  return getattr(path[-1], 'name', '')
