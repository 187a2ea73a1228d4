"""A tiny target, what it wrote, and drafters of every method for it."""

import dataclasses
import functools

import jax
import numpy as np

from spinejax import sharding
from spinejax.decode.generate import Completion
from spinejax.drafters.base import DraftModel
from spinejax.drafters.loading import plain_model
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import random_params
from spinejax.train import evaluate, setup
from spinejax.train.shards import Writer, Written
from spinejax.train.step import TrainConfig
from tests.decode.toy import Ids, prompts

V, LENGTH, COUNT = 64, 40, 8
CFG = TargetConfig(
  'llama', vocab=V, width=32, layers=3, heads=4, kv_heads=2, head_dim=8,
  ffn=48, max_position=256,
)  # fmt: skip
SHAPE = dict(layers=1, block=5, mask_id=7, taps=1)
METHODS = {
  'dflash': dict(causal=False),
  'dflash2': dict(causal=False, conv_group=8, selector_rank=6, candidates=4),
  'domino': dict(causal=False, emb_dim=6, gru_dim=8),
  'dspark': dict(causal=False, markov_rank=6, block=4),
  'dspine': dict(causal=True, rank=12, message=10, layers=2),
}
TRAIN = TrainConfig(steps=60, anchors=6, learning_rate=2e-2)
PROMPTS = prompts(*range(3, 3 + COUNT))
CAPACITY = 128


class Endless(Ids):
  """A tokenizer without stop tokens: answers fill their length."""

  stop_ids = ()


@functools.cache
def target(mesh: str = '') -> Target:
  params = jax.jit(random_params, static_argnums=0)(CFG, jax.random.key(1))
  # Sublayers that count for more: answers that hang on the whole context.
  layers = tuple(
    dataclasses.replace(x, out_DX=3 * x.out_DX, down_DF=3 * x.down_DF)
    for x in params.layers
  )
  params = dataclasses.replace(params, layers=layers)
  head_VD = np.asarray(params.head_VD)
  params = sharding.shard(params, sharding.make_mesh(mesh))
  return Target('tiny', CFG, params, Endless(), head_VD)


def begin(
  method='dspine', train=TRAIN, of=None, drafter=(), loss=()
) -> setup.Start:
  """A fresh start of training."""
  of = target() if of is None else of
  sizes = SHAPE | METHODS[method] | dict(drafter)
  return setup.start(
    of, setup.make_task(of, method, train, drafter=sizes, loss=dict(loss))
  )


def decode(draft: DraftModel, of: Target | None = None) -> list[Completion]:
  """Greedy answers to `PROMPTS` that fill `LENGTH`, speculatively."""
  return evaluate.answers(
    target() if of is None else of, draft, PROMPTS, capacity=CAPACITY,
    max_new_tokens=[LENGTH - len(p) for p in PROMPTS],
  )  # fmt: skip


@functools.cache
def plain() -> list[Completion]:
  """The same without a drafter, with as many rows as the methods have."""
  return decode(plain_model(slots=4))


def answered() -> dict[str, np.ndarray]:
  """One batch: the target's answers to `PROMPTS`."""
  rows = [[*p, *c.tokens] for p, c in zip(PROMPTS, plain(), strict=True)]
  return batch(rows, [len(p) for p in PROMPTS])


def batch(rows, answers) -> dict[str, np.ndarray]:
  """Sequences that fill `LENGTH`, as the input gives them."""
  return {
    'tokens_BT': np.array(rows, np.int32),
    'answer_B': np.array(answers, np.int32),
    'length_B': np.full(len(rows), LENGTH, np.int32),
  }


def random_batch(count: int = COUNT) -> dict[str, np.ndarray]:
  """Tokens that nobody wrote, where it does not matter what they are."""
  rng = np.random.default_rng(0)
  rows = rng.integers(0, V, (count, LENGTH))
  return batch(rows, np.arange(3, 3 + count))


def write(folder, count: int, of: Target | None = None) -> None:
  """A data set of sequences of several lengths that nobody wrote."""
  rng = np.random.default_rng(1)
  writer = Writer(folder, target() if of is None else of, shards=1, config={})
  writer.add(
    [
      Written('chat', rng.integers(0, V, int(length)), 4)
      for length in rng.integers(12, LENGTH + 1, count)
    ]
  )
