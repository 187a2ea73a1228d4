"""Tokens a round of a drafter in training, by real decoding."""

import dataclasses
from collections.abc import Sequence

import jax

from spinejax.decode.generate import Completion, generate, start
from spinejax.decode.request import encode_prompts
from spinejax.drafters.base import DraftModel
from spinejax.report import stats
from spinejax.target.loading import Target
from spinejax.train.step import Frozen, Task, TrainState


def drafter_of(task: Task, frozen: Frozen, state: TrainState) -> DraftModel:
  """The drafter as it is now, float32 weights."""
  params = task.objective.params(state.weights, frozen.codes_VR)
  return DraftModel(task.objective.drafter(task.cfg), params)


def cast(target: Target, draft: DraftModel) -> DraftModel:
  """A drafter in the dtype of the target, as it is decoded with."""
  dtype = target.params.embed_VD.dtype
  params = jax.tree.map(lambda x: x.astype(dtype), draft.params)
  return dataclasses.replace(draft, params=params)


def check_answers(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Sequence[int]],
  *,
  max_new_tokens: int,
) -> None:
  """Refuses before a run what `answers` would refuse in the middle of it.

  Raises:
    InputError: see `generate`.
  """
  start(target, draft, encode_prompts(target, prompts), max_new_tokens)


def answers(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Sequence[int]],
  *,
  max_new_tokens: int,
  capacity: int | None = None,
) -> list[Completion]:
  """Greedy answers, drafted in the dtype of the target."""
  return generate(
    target,
    cast(target, draft),
    prompts,
    max_new_tokens=max_new_tokens,
    capacity=capacity,
  ).completions


def tokens_per_round(completions: Sequence[Completion]) -> stats.Interval:
  """Pooled over the prompts, with its bootstrap interval."""
  return stats.tokens_per_round(
    [len(c.tokens) for c in completions], [c.rounds for c in completions]
  )
