"""What a caller asks for, checked before anything is computed."""

from collections.abc import Sequence

import numpy as np

from spinejax.errors import InputError
from spinejax.target.loading import Target

Prompt = str | Sequence[str] | Sequence[int]


def whole(field: str, value, low: int, high: int) -> int:
  """`value` as an int in low..high.

  Raises:
    InputError: it is not a whole number, or outside.
  """
  if isinstance(value, bool) or not isinstance(value, int | np.integer):
    raise InputError(f'{field} = {value!r:.60}, expected a whole number')
  if not low <= value <= high:
    raise InputError(f'{field} = {value!s:.60}, expected {low}..{high}')
  return int(value)


def check_context(target: Target, i: int | None, tokens: int, new: int) -> None:
  """Refuses prompt number i if its answer would outgrow the context."""
  if tokens + new > target.cfg.max_position:
    which = 'prompt' if i is None else f'prompt {i}'
    raise InputError(
      f'{which} has {tokens} tokens; with {new} new ones that exceeds the '
      f'context of {target.cfg.max_position} that {target.name} was trained for'
    )


def encode_prompts(
  target: Target, prompts: Sequence[Prompt]
) -> list[list[int]]:
  """Token ids of each prompt: a user turn, several turns, or ids as given.

  Raises:
    InputError: a prompt is empty or of another kind, or an id is outside the
      vocabulary.
  """
  if isinstance(prompts, str):
    raise InputError(f'prompts = {prompts!r} is one string, expected a list')
  if not isinstance(prompts, Sequence | np.ndarray):
    raise InputError(f'prompts is a {type(prompts).__name__}, expected a list')
  if not len(prompts):
    raise InputError('prompts is empty, expected at least one')
  return [_encode(target, i, prompt) for i, prompt in enumerate(prompts)]


def _encode(target: Target, i: int, prompt: Prompt) -> list[int]:
  """Token ids of prompt number i."""
  if isinstance(prompt, str):
    prompt = [prompt]
  elif isinstance(prompt, bytes) or not np.ndim(prompt):
    raise InputError(
      f'prompt {i} is {prompt!r}, expected a string, strings or token ids'
    )
  if not len(prompt):
    raise InputError(f'prompt {i} is empty')
  if all(isinstance(turn, str) for turn in prompt):
    if not all(turn.strip() for turn in prompt):
      raise InputError(f'prompt {i} is empty, or a turn of it is')
    if len(prompt) % 2 == 0:
      raise InputError(
        f'prompt {i} has {len(prompt)} turns, expected user and assistant '
        "turns in order, ending with the user's"
      )
    prompt = target.tokenizer.encode_chat(prompt)
    if not prompt:
      raise InputError(f'prompt {i}: the chat template renders nothing')
  check_ids(target, f'prompt {i}', prompt)
  return [int(t) for t in prompt]


def check_ids(target: Target, field: str, ids: Sequence[int]) -> None:
  """Refuses what is not a token id of the target."""
  for t in ids:
    known = isinstance(t, int | np.integer) and not isinstance(t, bool)
    if not known or not 0 <= t < target.cfg.vocab:
      raise InputError(
        f'{field} has token id {t!r:.60}, expected 0..{target.cfg.vocab - 1}'
      )
