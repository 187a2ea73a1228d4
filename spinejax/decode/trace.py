"""Rounds of one request, stepped through from the host and looked at."""

import dataclasses
import functools
import os

import jax
import numpy as np

from spinejax.decode.generate import start
from spinejax.decode.loop import prefill_chunk
from spinejax.decode.request import Prompt, encode_prompts, whole
from spinejax.decode.round import STAGES, Params, step
from spinejax.decode.state import DecodeState
from spinejax.drafters.base import DraftModel
from spinejax.report import profile as profile_of
from spinejax.target.loading import Target
from spinejax.target.memory import PREFILL_CHUNK
from spinejax.verify.sampling import Sampling

_MOST = 2**31 - 1

# Nothing is donated: the state before a round stays valid.
one_step = jax.jit(step, static_argnums=(0, 1))


@dataclasses.dataclass(frozen=True)
class Seen:
  """What a round did to one request.

  Attributes:
    state: before the round.
    proposed_S: ids that the drafter proposed; -1 is no proposal.
    accepted: proposals that the target accepted.
    emitted: ids of the answer that came of it, after stop tokens and caps; the
      last one is the target's own, unless the answer was cut before.
  """

  state: DecodeState
  proposed_S: np.ndarray
  accepted: int
  emitted: np.ndarray


def prefilled(
  target: Target,
  draft: DraftModel,
  prompt: Prompt,
  max_new_tokens: int = 256,
  seed: int = 0,
) -> DecodeState:
  """The state of one request before its first round.

  Raises:
    InputError: see `generate`.
  """
  draft.check(target)
  ids = encode_prompts(target, [prompt])
  state = start(target, draft, ids, max_new_tokens, seed)
  params = Params(target.params, draft.params)
  for _ in range(0, len(ids[0]) - 1, PREFILL_CHUNK):
    state = prefill_chunk(target.cfg, draft.drafter, params, state)
  return state


def trace(
  target: Target,
  draft: DraftModel,
  state: DecodeState,
  rounds: int,
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
) -> list[Seen]:
  """At most so many rounds of one request, until its answer ends.

  Args:
    state: of a batch of one, as `prefilled` or a round leaves it.

  Raises:
    InputError: `rounds` or a setting of sampling is out of its range.
  """
  whole('rounds', rounds, 1, _MOST)
  sampling = Sampling.make(1, temperature, top_k, top_p)
  params, seen = Params(target.params, draft.params), []
  while len(seen) < rounds and not state.done_B[0]:
    done = one_step(target.cfg, draft.drafter, params, state, sampling)
    tokens_T = np.asarray(done.state.tokens_BT[0])
    at, end = int(state.length_B[0]), int(done.state.length_B[0])
    seen.append(
      Seen(
        state,
        np.asarray(done.proposal.tokens_BS[0]),
        int(done.verdict.accepted_B[0]),
        tokens_T[at:end],
      )
    )
    state = done.state
  return seen


def profile(
  target: Target,
  draft: DraftModel,
  state: DecodeState,
  folder: str | os.PathLike[str],
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
) -> dict[str, float]:
  """Profiles one round into a folder, where TensorBoard's xprof finds it.

  Args:
    state: see `trace`; stays valid.
    folder: the run's, in which other event files may be.

  Returns:
    Busy milliseconds of each stage (`round.STAGES`) and of what is in none.
  """
  params = Params(target.params, draft.params)
  sampling = Sampling.make(1, temperature, top_k, top_p)
  compiled = one_step.lower(
    target.cfg, draft.drafter, params, state, sampling
  ).compile(compiler_options=profile_of.legible())
  run = functools.partial(compiled, params, state, sampling)
  jax.block_until_ready(run())
  profile_of.record(folder, run)
  busy = profile_of.breakdown(folder, compiled.as_text(), STAGES)
  by_stage = dict.fromkeys((*STAGES, profile_of.OTHER), 0.0)
  for (stage, _), ms in busy.items():
    by_stage[stage] += ms
  return by_stage
