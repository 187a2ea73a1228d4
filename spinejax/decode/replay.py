"""Tokens a round without the target: drafting along answers that are known.

A greedy answer is the target's, whatever the drafter. So it is decoded once,
and what any drafter would have had accepted is found by letting it propose at
the places where its rounds would have begun: decoding with the answer in the
place of the verification. All context of the drafter comes from one pass over
the whole sequence. As quick as drafting alone, and the rounds are those of
decoding, up to near-ties of the drafter's scores (the target's states have
other last bits when they are read in one pass).
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spinejax.decode.generate import Completion
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.round import Params
from spinejax.drafters.base import Drafter, DraftModel, History, TargetView
from spinejax.errors import InputError
from spinejax.sharding import shard
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import read
from spinejax.verify.sampling import Sampling, Stream, round_keys


def replay(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Sequence[int]],
  answers: Sequence[Completion],
  batch: int,
) -> list[Completion]:
  """The answers with the rounds that they would have taken with a drafter.

  Args:
    prompts: token ids of each prompt.
    answers: the target's greedy answers to them, by any drafter.
    batch: answers replayed at a time; the last batch is filled up.

  Raises:
    InputError: the drafter was made for another target, or prompts and answers
      are not as many.
  """
  draft.check(target)
  if len(prompts) != len(answers) or not answers:
    raise InputError(
      f'{len(prompts)} prompts and {len(answers)} answers, expected as many, '
      'and at least one'
    )
  pairs = zip(prompts, answers, strict=True)
  known = [np.concatenate([p, a.tokens]) for p, a in pairs]
  capacity = capacity_bucket(max(map(len, known)))
  params, done = Params(target.params, draft.params), []
  for first in range(0, len(known), batch):
    some = [i % len(known) for i in range(first, first + batch)]
    tokens_BT = np.zeros((batch, capacity), np.int32)
    for row, i in zip(tokens_BT, some, strict=True):
      row[: len(known[i])] = known[i]
    arrays = {
      'tokens_BT': tokens_BT,
      'begin_B': np.array([len(prompts[i]) for i in some], np.int32),
      'end_B': np.array([len(known[i]) for i in some], np.int32),
    }
    hist_BK = np.asarray(
      rounds_of(target.cfg, draft.drafter, params, **shard(arrays, target.mesh))
    )
    done += [
      dataclasses.replace(answers[i], rounds=int(h.sum()), accepted_hist=h)
      for i, h in zip(some, hist_BK, strict=True)
    ]
  return done[: len(known)]


@functools.partial(jax.jit, static_argnames=('cfg', 'drafter'))
def rounds_of(
  cfg: TargetConfig,
  drafter: Drafter,
  params: Params,
  tokens_BT: jax.Array,
  begin_B: jax.Array,
  end_B: jax.Array,
) -> jax.Array:
  """Rounds of each request by proposals kept, int32 [B, S + 1].

  Args:
    tokens_BT: prompts and greedy answers.
    begin_B, end_B: length of the prompt, at least 1; and with the answer.
  """
  (B, T), S = tokens_BT.shape, drafter.slots
  dtype = params.target.embed_VD.dtype
  _, features_BTP = read(cfg, params.target, tokens_BT, drafter.taps)
  cache = drafter.init_cache(drafter.cfg, B, T, dtype)
  cache = drafter.extend(
    drafter.cfg, params.drafter, cache, features_BTP, end_B
  )
  view = TargetView(params.target.embed_VD, params.target.head_VD)
  sampling = Sampling.make(B, 0.0)

  def body(carry):
    length_B, hist_BK = carry
    # The last known token is the anchor, and not yet context of the drafter.
    anchor_B = jnp.take_along_axis(tokens_BT, length_B[:, None] - 1, axis=1)
    keys_B = round_keys(jnp.zeros_like(length_B), length_B, Stream.DRAFT)
    proposed_BS = drafter.propose(
      drafter.cfg,
      params.drafter,
      view,
      dataclasses.replace(cache, length_B=length_B - 1),
      History(tokens_BT, length_B),
      anchor_B[:, 0],
      keys_B,
      sampling,
    ).tokens_BS
    at_BS = length_B[:, None] + jnp.arange(S)
    known_BS = jnp.take_along_axis(tokens_BT, jnp.minimum(at_BS, T - 1), axis=1)
    right_BS = (proposed_BS == known_BS) & (at_BS < end_B[:, None])
    accepted_B = jnp.sum(jnp.cumprod(right_BS, axis=1), axis=1)
    count_B = jnp.minimum(accepted_B + 1, end_B - length_B)
    ran_BK = jnp.arange(S + 1) == count_B[:, None] - 1
    return length_B + count_B, hist_BK + ran_BK.astype(jnp.int32)

  begun = (begin_B, jnp.zeros((B, S + 1), jnp.int32))
  return lax.while_loop(lambda x: jnp.any(x[0] < end_B), body, begun)[1]
