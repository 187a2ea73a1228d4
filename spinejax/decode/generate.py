"""Decoding a ragged batch of prompts from the host's side."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.decode.loop import (
  PREFILL_CHUNK,
  capacity_bucket,
  prefill_chunk,
  run_rounds,
)
from spinejax.decode.round import Params
from spinejax.decode.state import DecodeState, init_state
from spinejax.drafters.loading import DraftModel
from spinejax.errors import InputError
from spinejax.target.loading import Target
from spinejax.target.memory import check_memory
from spinejax.verify.sampling import Sampling

Prompt = str | Sequence[str] | Sequence[int]
_UNTIL_DONE = np.iinfo(np.int32).max


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
  """Answers to a batch, and the wall time it took, in seconds."""

  completions: list[Completion]
  prefill_s: float
  decode_s: float


def encode_prompts(
  target: Target, prompts: Sequence[Prompt]
) -> list[list[int]]:
  """Token ids of each prompt: a user turn, several turns, or ids as given.

  Raises:
    InputError: a prompt is empty, or an id is outside the vocabulary.
  """
  encoded = []
  for i, prompt in enumerate(prompts):
    if isinstance(prompt, str):
      prompt = [prompt]
    prompt = list(prompt)
    if not prompt or (isinstance(prompt[0], str) and not prompt[-1].strip()):
      raise InputError(f'prompt {i} is empty')
    if isinstance(prompt[0], str):
      prompt = target.tokenizer.encode_chat(prompt)
    ids = [int(t) for t in prompt]
    if not all(0 <= t < target.cfg.vocab for t in ids):
      raise InputError(
        f'prompt {i} has a token id outside 0..{target.cfg.vocab - 1}'
      )
    encoded.append(ids)
  if not encoded:
    raise InputError('no prompts')
  return encoded


def generate(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Prompt],
  *,
  max_new_tokens: int = 256,
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  stop_ids: Sequence[int] | None = None,
  capacity: int | None = None,
  stream: Callable[[list[np.ndarray]], None] | None = None,
  stream_rounds: int = 8,
) -> Generation:
  """Decodes a batch; the output law is the target's, whatever the drafter.

  Args:
    target, draft: what to decode with; `plain_model()` drafts nothing.
    prompts: a string (one user turn), turns, or token ids each.
    max_new_tokens: cap on the tokens of each answer.
    temperature, top_k, top_p: 0 is greedy; top_k 0 and top_p 1 are off.
    seed: request i draws from seed + i.
    stop_ids: ids that end an answer; by default the tokenizer's.
    capacity: rows of the caches; by default the bucket that fits. Batches of
      one capacity share their compiled programs.
    stream: called with the new tokens of every request, every
      `stream_rounds` rounds, while decoding goes on.

  Raises:
    InputError: a prompt is empty, too long, or the caches do not fit.
  """
  draft.check(target)
  ids = encode_prompts(target, prompts)
  state = start(target, draft, ids, max_new_tokens, seed, stop_ids, capacity)
  sampling = Sampling.make(len(ids), temperature, top_k, top_p)
  params = Params(target.params, draft.params)
  began = time.perf_counter()
  for _ in range(-(-max(map(len, ids)) // PREFILL_CHUNK)):
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
  max_new_tokens: int,
  seed: int = 0,
  stop_ids: Sequence[int] | None = None,
  capacity: int | None = None,
) -> DecodeState:
  """The state of a batch before prefill; see `generate`."""
  if max_new_tokens < 1:
    raise InputError(f'max_new_tokens = {max_new_tokens}, expected at least 1')
  lengths = np.array([len(i) for i in ids], np.int32)
  # A round writes K rows before it knows how many stay.
  longest = int(lengths.max()) + max_new_tokens
  need = longest + draft.drafter.slots + 1
  if longest > target.cfg.max_position:
    raise InputError(
      f'prompt {int(lengths.argmax())} has {lengths.max()} tokens; with '
      f'{max_new_tokens} new ones that exceeds the context of '
      f'{target.cfg.max_position} that {target.name} was trained for'
    )
  if capacity is None:
    capacity = capacity_bucket(need)
  if need > capacity:
    raise InputError(
      f'capacity = {capacity} is too small: prompt {int(lengths.argmax())} '
      f'needs {need} rows'
    )
  check_memory(target, draft, len(ids), capacity)
  tokens_BT = np.zeros((len(ids), capacity), np.int32)
  for row, prompt in zip(tokens_BT, ids, strict=True):
    row[: len(prompt)] = prompt
  if stop_ids is None:
    stop_ids = target.tokenizer.stop_ids
  return init_state(
    target.cfg,
    draft.drafter,
    jnp.asarray(tokens_BT),
    jnp.asarray(lengths),
    jnp.asarray(lengths + max_new_tokens),
    jnp.asarray(np.arange(len(ids)) + seed, jnp.uint32),
    jnp.asarray(list(stop_ids), jnp.int32),
    target.params.embed_VD.dtype,
  )


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
