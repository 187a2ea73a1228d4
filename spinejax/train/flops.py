"""What a training step computes, counted from its shapes."""

import math

import jax

from spinejax.train.step import Task, TrainState


def flops_per_step(task: Task, state: TrainState, batch: int, length: int):
  """Floating-point operations of one step: products with weights only.

  Two for each weight and row, three times as many where there is a gradient;
  attention, softmax and the optimiser are left out. The draft layers run on
  the rows of the blocks, the projections of the context on the tokens, and
  the head on the slots that propose: their logits, the gradient, and the
  target's logits where there is an L1 term.
  """
  cfg, target = task.cfg, task.target
  tokens = batch * length
  blocks = batch * task.anchors
  heads = (target.heads + 2 * target.kv_heads) * target.head_dim
  layer = target.width * (heads + target.heads * target.head_dim)
  layer += 3 * target.width * target.ffn
  read = 2 * tokens * target.layers * layer
  weights = sum(math.prod(x.shape) for x in jax.tree.leaves(state.weights))
  tables = 2 * cfg.vocab * getattr(cfg, 'selector_rank', 0)  # rows are taken
  context = len(cfg.taps) * cfg.width**2
  context += cfg.layers * 2 * cfg.width * cfg.kv_heads * cfg.head_dim
  draft = 6 * (blocks * cfg.block * (weights - tables) + tokens * context)
  passes = 3 if uses_teacher(task.options) else 2
  head = 2 * passes * blocks * cfg.slots * cfg.vocab * cfg.width
  return read + draft + head


def uses_teacher(options) -> bool:
  """Whether a loss has an L1 term."""
  return min(getattr(options, 'ce_start', 1), getattr(options, 'ce_end', 1)) < 1
