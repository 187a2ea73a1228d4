"""Decoding a ragged batch of prompts from the host's side."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.decode.loop import (
  capacity_bucket,
  new_state,
  prefill_chunk,
  run_rounds,
)
from spinejax.decode.request import (
  Prompt,
  check_context,
  check_ids,
  encode_prompts,
  whole,
)
from spinejax.decode.round import Params
from spinejax.decode.state import DecodeState
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.sharding import DATA, shard
from spinejax.target.loading import Target
from spinejax.target.memory import PREFILL_CHUNK, check_memory
from spinejax.verify.sampling import Sampling

_UNTIL_DONE = np.iinfo(np.int32).max
_SEEDS = 2**32


@dataclasses.dataclass(frozen=True)
class Completion:
  """One answer and its statistics.

  Attributes:
    text: the answer without special tokens.
    tokens: emitted ids, the stop token included.
    prompt_tokens: number of prompt tokens.
    finish: 'stop' (a stop token) or 'length' (the cap).
    rounds: rounds this request took.
    accepted_hist: rounds by proposals kept, [S + 1].
  """

  text: str
  tokens: np.ndarray
  prompt_tokens: int
  finish: str
  rounds: int
  accepted_hist: np.ndarray

  @property
  def tokens_per_round(self) -> float:
    """Emitted tokens a round, the always emitted one included."""
    return len(self.tokens) / max(self.rounds, 1)


@dataclasses.dataclass(frozen=True)
class Generation:
  """Answers to a batch, and the wall time it took, in seconds.

  The first call for a shape includes compilation.
  """

  completions: list[Completion]
  prefill_s: float
  decode_s: float


def generate(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Prompt],
  *,
  max_new_tokens: int | Sequence[int] = 256,
  temperature: float | Sequence[float] = 0.0,
  top_k: int | Sequence[int] = 0,
  top_p: float | Sequence[float] = 1.0,
  seed: int = 0,
  stop_ids: Sequence[int] | None = None,
  capacity: int | None = None,
  stream: Callable[[list[np.ndarray]], None] | None = None,
  stream_rounds: int = 8,
) -> Generation:
  """Decodes a batch; the output law is the target's, whatever the drafter.

  Args:
    target, draft: what to decode with; `load_drafter('plain', target)` drafts
      nothing.
    prompts: each a string (one user turn), a list of strings (user and
      assistant turns in order, ending with the user's), or token ids.
    max_new_tokens: cap on the tokens of each answer, or one for each.
    temperature, top_k, top_p: one value, or one for each prompt; temperature
      0 is greedy, top_k 0 and top_p 1 are off.
    seed: request i draws from seed + i.
    stop_ids: ids that end an answer; by default the tokenizer's.
    capacity: rows of the caches; by default the bucket that fits. Batches of
      one capacity share their compiled programs.
    stream: called every `stream_rounds` rounds, while decoding goes on, with
      the new token ids of every request (`target.tokenizer.decode` makes text
      of them); empty for those that have ended.

  Raises:
    InputError: a prompt is empty or too long, a setting is out of its range,
      the drafter was made for another target, the caches do not fit, or the
      batch cannot be split over the target's mesh.
  """
  if not isinstance(draft, DraftModel):
    raise InputError(
      f'draft = {draft!r}, expected a DraftModel; load_drafter makes one'
    )
  draft.check(target)
  whole('stream_rounds', stream_rounds, 1, _UNTIL_DONE)
  if stream is not None and not callable(stream):
    raise InputError(f'stream = {stream!r}, expected a function')
  ids = encode_prompts(target, prompts)
  sampling = Sampling.make(len(ids), temperature, top_k, top_p)
  state = start(target, draft, ids, max_new_tokens, seed, stop_ids, capacity)
  sampling = shard(sampling, target.mesh)
  params = Params(target.params, draft.params)
  began = time.perf_counter()
  # A prompt's last token is not read: it is the first anchor.
  for _ in range(-(-(max(map(len, ids)) - 1) // PREFILL_CHUNK)):
    state = prefill_chunk(target.cfg, draft.drafter, params, state)
  jax.block_until_ready(state)
  prefilled = time.perf_counter()
  most = jnp.int32(_UNTIL_DONE if stream is None else stream_rounds)
  sent = [len(i) for i in ids]
  while True:
    state = run_rounds(target.cfg, draft.drafter, params, state, sampling, most)
    if stream is None:
      break
    tokens, lengths, done = jax.device_get(
      (state.tokens_BT, state.length_B, state.done_B)
    )
    stream(
      [
        tokens[b, s:n]
        for b, (s, n) in enumerate(zip(sent, lengths, strict=True))
      ]
    )
    sent = list(lengths)
    if done.all():
      break
  jax.block_until_ready(state)
  ended = time.perf_counter()
  return Generation(
    collect(target, state), prefilled - began, ended - prefilled
  )


def start(
  target: Target,
  draft: DraftModel,
  ids: Sequence[Sequence[int]],
  max_new_tokens: int | Sequence[int],
  seed: int = 0,
  stop_ids: Sequence[int] | None = None,
  capacity: int | None = None,
) -> DecodeState:
  """The state of a batch before prefill; see `generate`."""
  new = _caps(target, ids, max_new_tokens)
  whole('seed', seed, 0, _SEEDS - len(ids))
  if stop_ids is None:
    stop_ids = target.tokenizer.stop_ids
  check_ids(target, 'stop_ids', stop_ids)
  lengths = np.array([len(i) for i in ids], np.int32)
  # A round writes K rows before it knows how many stay.
  caps = lengths + np.array(new, np.int32)
  worst, longest = int(caps.argmax()), int(caps.max())
  need = longest + draft.drafter.slots + 1
  check_context(target, worst, lengths[worst], longest - lengths[worst])
  if capacity is None:
    capacity = capacity_bucket(need)
  whole('capacity', capacity, 1, _UNTIL_DONE)
  if need > capacity:
    raise InputError(
      f'capacity = {capacity} is too small: prompt {worst} needs {need} rows'
    )
  parts = 1 if target.mesh is None else target.mesh.shape[DATA]
  if len(ids) % parts:
    raise InputError(
      f'a batch of {len(ids)} cannot be split evenly over the mesh axis '
      f'{DATA}={parts}'
    )
  check_memory(target, draft, len(ids), capacity)
  tokens_BT = np.zeros((len(ids), capacity), np.int32)
  for row, prompt in zip(tokens_BT, ids, strict=True):
    row[: len(prompt)] = prompt
  arrays = {
    'tokens_BT': tokens_BT,
    'prompt_length_B': lengths,
    'cap_B': caps,
    'seed_B': (np.arange(len(ids)) + seed).astype(np.uint32),
    'stop_ids_E': np.array(list(stop_ids), np.int32),
  }
  return new_state(
    target.cfg,
    draft.drafter,
    target.params.embed_VD.dtype,
    **shard(arrays, target.mesh),
  )


def _caps(target: Target, ids, max_new_tokens) -> list[int]:
  """New tokens allowed to each request."""
  if np.ndim(max_new_tokens) == 0 or isinstance(max_new_tokens, str):
    max_new_tokens = [max_new_tokens] * len(ids)
  if len(max_new_tokens) != len(ids):
    raise InputError(
      f'max_new_tokens names {len(max_new_tokens)} caps, expected one for '
      f'each of {len(ids)} prompts'
    )
  most = target.cfg.max_position
  return [whole('max_new_tokens', n, 1, most) for n in max_new_tokens]


def collect(target: Target, state: DecodeState) -> list[Completion]:
  """Answers and statistics of a finished batch."""
  host = jax.device_get((
    state.tokens_BT, state.length_B, state.prompt_length_B,
    state.rounds_B, state.accepted_hist_BK,
  ))  # fmt: skip
  stop_ids = jax.device_get(state.stop_ids_E)
  answers = []
  for tokens, length, prompt, ran, hist in zip(*host, strict=True):
    emitted = tokens[prompt:length]
    stopped = len(emitted) > 0 and emitted[-1] in stop_ids
    answers.append(
      Completion(
        text=target.tokenizer.decode(emitted),
        tokens=emitted,
        prompt_tokens=int(prompt),
        finish='stop' if stopped else 'length',
        rounds=int(ran),
        accepted_hist=hist,
      )
    )
  return answers
