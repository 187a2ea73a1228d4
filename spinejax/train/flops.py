"""What a training step computes, counted from its shapes."""

from spinejax.energy.cost import draft_products
from spinejax.target.config import layer_weights
from spinejax.train.step import Task, TrainState


def flops_per_step(task: Task, state: TrainState, batch: int, length: int):
  """Floating-point operations of one step: products with weights only.

  Two for each weight and row, three times as many where there is a gradient;
  attention, softmax, the choice among candidates and the optimiser are left
  out. The head runs on the slots that propose; it has no gradient of its own,
  but gives the target's logits too where there is an L1 term.
  """
  cfg, target = task.cfg, task.target
  tokens = batch * length
  blocks = batch * task.anchors
  read = 2 * tokens * target.layers * layer_weights(target)
  draft = draft_products(cfg, state.weights, tokens, blocks)
  passes = 3 if task.options.needs_teacher else 2
  head = 2 * passes * blocks * cfg.slots * cfg.vocab * cfg.width
  return read + 6 * draft + head
