"""How many proposals are accepted: tokens a round, by prompts and position."""

from collections.abc import Sequence
from typing import Any

from spinejax.decode.generate import Completion, generate
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.replay import replay
from spinejax.decode.request import check_context, whole
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.prompts import PromptSet
from spinejax.report import stats
from spinejax.sharding import DATA
from spinejax.target.loading import Target
from spinejax.verify.sampling import Sampling


def counts(completions: Sequence[Completion], seed: int = 0) -> dict[str, Any]:
  """Tokens a round of a set of prompts, and what it was computed from.

  With the keys of result files; beside it stands what is left without the
  answers that end in a loop, which flatter any drafter.
  """
  emitted = [len(c.tokens) for c in completions]
  rounds = [c.rounds for c in completions]
  tau = stats.tokens_per_round(emitted, rounds, seed=seed)
  looping = [stats.is_repetitive(c.tokens) for c in completions]
  row = {
    'total': len(emitted),
    'tokens_per_round': tau.value,
    'tokens_per_round_low': tau.low,
    'tokens_per_round_high': tau.high,
    'emitted_by_prompt': emitted,
    'rounds_by_prompt': rounds,
    'repetitive': sum(looping),
  }
  if not all(looping):
    row['tokens_per_round_nonrepetitive'] = stats.tokens_per_round(
      [n for n, loops in zip(emitted, looping, strict=True) if not loops],
      [n for n, loops in zip(rounds, looping, strict=True) if not loops],
    ).value
  return row


def by_position(completions: Sequence[Completion]) -> dict[str, Any]:
  """Acceptance by position, if anything was proposed."""
  hist = sum(c.accepted_hist for c in completions)
  if len(hist) < 2:
    return {}
  return {'acceptance_by_position': stats.acceptance(hist).by_position}


def check(
  target: Target,
  sets: Sequence[PromptSet],
  *,
  temperatures: Sequence[float],
  max_new_tokens: int,
  batch: int,
) -> None:
  """Refuses what `measure` would refuse after a training.

  Raises:
    InputError: a prompt does not fit, a setting is out of its range, or a
      batch, the last one too, cannot be split over the target's mesh.
  """
  for temperature in temperatures:
    Sampling.make(1, temperature)
  whole('max_new_tokens', max_new_tokens, 1, 2**31 - 1)
  whole('batch', batch, 1, 2**31 - 1)
  parts = 1 if target.mesh is None else target.mesh.shape[DATA]
  count = sum(map(len, sets))
  for size in (min(batch, count), count % batch):
    if size % parts:
      raise InputError(
        f'{count} prompts in batches of {batch}: one of {size} cannot be split '
        f'evenly over the mesh axis {DATA}={parts}'
      )
  for one in sets:
    for i, turns in enumerate(one.turns):
      count = len(target.tokenizer.encode_chat(turns[:1]))
      check_context(target, i, count, max_new_tokens)


def measure(
  target: Target,
  draft: DraftModel,
  sets: Sequence[PromptSet],
  *,
  temperature: float = 0.0,
  max_new_tokens: int = 256,
  batch: int = 512,
  seed: int = 0,
  answers: Sequence[Completion] | None = None,
) -> list[dict[str, Any]]:
  """Metric rows of a drafter, one a set of prompts.

  Args:
    answers: the target's greedy answers to all prompts, as `decode` gives them
      for any drafter: the rounds are then replayed along them (see
      `decode.replay`), which needs no decoding. For temperature 0 only.

  Raises:
    InputError: as `generate`.
  """
  if answers is None:
    done = decode(
      target, draft, sets, temperature=temperature,
      max_new_tokens=max_new_tokens, batch=batch, seed=seed,
    )  # fmt: skip
  elif temperature:
    raise InputError(
      f'temperature = {temperature}, expected 0: sampled answers cannot be '
      'replayed'
    )
  else:
    ids = _encoded(target, sets)
    done = replay(target, draft, ids, answers, min(batch, len(ids)))
  rows, start = [], 0
  for one in sets:
    part = done[start : start + len(one)]
    start += len(one)
    row = {
      'target': target.name,
      'drafter': draft.drafter.name,
      'dataset': one.name,
      'temperature': temperature,
      'dtype': str(target.params.embed_VD.dtype),
      'batch': min(batch, len(done)),
      'max_new_tokens': max_new_tokens,
      'seed': seed,
      'replayed': answers is not None,
    }
    rows.append(row | counts(part, seed) | by_position(part))
  return rows


def decode(
  target: Target,
  draft: DraftModel,
  sets: Sequence[PromptSet],
  *,
  temperature: float = 0.0,
  max_new_tokens: int = 256,
  batch: int = 512,
  seed: int = 0,
) -> list[Completion]:
  """Answers to the prompts of all sets, one set after the other.

  They are decoded in common batches of one capacity: a drafter is compiled
  once, or twice if the last batch is smaller. Of prompts with several turns the
  first is asked.

  Raises:
    InputError: as `generate`.
  """
  ids = _encoded(target, sets)
  longest = max(map(len, ids)) + max_new_tokens + draft.drafter.slots + 1
  done = []
  for first in range(0, len(ids), batch):
    done += generate(
      target,
      draft,
      ids[first : first + batch],
      max_new_tokens=max_new_tokens,
      temperature=temperature,
      seed=seed + first,
      capacity=capacity_bucket(longest),
    ).completions
  return done


def _encoded(target: Target, sets: Sequence[PromptSet]) -> list[list[int]]:
  return [
    target.tokenizer.encode_chat(turns[:1])
    for one in sets
    for turns in one.turns
  ]
