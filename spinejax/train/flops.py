"""What a training step computes, counted from its shapes."""

import jax

from spinejax.train.step import Task, TrainState

# Of these a few rows are taken; those DSpine uses in every layer.
_TABLES = ('before_VE', 'before_VR', 'after_VR')
_SHARED = ('message_MR', 'receiver_MR', 'predecessor_MR')


def flops_per_step(task: Task, state: TrainState, batch: int, length: int):
  """Floating-point operations of one step: products with weights only.

  Two for each weight and row, three times as many where there is a gradient;
  attention, softmax, the choice among candidates and the optimiser are left
  out. The draft layers run on the rows of the blocks, the projections of the
  context on the tokens; the head and a low-rank correction of its logits on the
  slots that propose. The head has no gradient of its own, but gives the
  target's logits too where there is an L1 term.
  """
  cfg, target = task.cfg, task.target
  tokens = batch * length
  blocks = batch * task.anchors
  heads = (target.heads + 2 * target.kv_heads) * target.head_dim
  layer = target.width * (heads + target.heads * target.head_dim)
  layer += 3 * target.width * target.ffn
  read = 2 * tokens * target.layers * layer
  # Each token is also a row of keys and values in every draft layer.
  draft = tokens * cfg.layers * 2 * cfg.width * cfg.kv_heads * cfg.head_dim
  rows = blocks * cfg.block
  runs = {'fc_DP': tokens, 'up_VE': blocks * cfg.slots}
  runs |= dict.fromkeys(_TABLES, 0) | dict.fromkeys(_SHARED, cfg.layers * rows)
  for path, x in jax.tree.leaves_with_path(state.weights):
    if x.ndim > 1:
      draft += runs.get(getattr(path[-1], 'name', ''), rows) * x.size
  passes = 3 if task.options.needs_teacher else 2
  head = 2 * passes * blocks * cfg.slots * cfg.vocab * cfg.width
  return read + 6 * draft + head
