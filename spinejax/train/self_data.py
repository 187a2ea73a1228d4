"""Training data that the target writes itself.

A drafter learns to continue what its own target would say, so the data is the
target's: it continues an opened user turn (with or without a steering prefix)
by sampling, or is given a prompt, and then answers greedily.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spinejax.decode.generate import generate
from spinejax.drafters.files import sha256_of
from spinejax.drafters.loading import plain_model
from spinejax.errors import InputError
from spinejax.report.results import atomic_write, portable
from spinejax.target.hf_dir import read_json
from spinejax.target.loading import Target


@dataclasses.dataclass(frozen=True)
class Sequences:
  """Token sequences with their answers.

  Attributes:
    tokens_NT: uint16 or int32 ids, padded with 0.
    answer_N: index of the first answer token.
    length_N: valid tokens.
  """

  tokens_NT: np.ndarray
  answer_N: np.ndarray
  length_N: np.ndarray

  def loss_mask(self) -> np.ndarray:
    """float32 [N, T]: the answer, and the token before it.

    Decoding starts with the last prompt token as its first anchor, so that
    token is an anchor in training too.
    """
    at = np.arange(self.tokens_NT.shape[1])
    inside = at < self.length_N[:, None]
    return (inside & (at >= self.answer_N[:, None] - 1)).astype(np.float32)


def encode_openings(target: Target, prefixes: Sequence[str]) -> list[list[int]]:
  """Ids of user turns that are opened with a prefix and not closed."""
  marker = '\0'
  opened = target.tokenizer.render([{'role': 'user', 'content': marker}])
  opened = opened.split(marker)[0]
  return [target.tokenizer.encode(opened + p) for p in prefixes]


def write_user_turns(
  target: Target,
  prefixes: Sequence[str],
  *,
  seed: int,
  max_tokens: int,
  capacity: int,
  top_k: int = 64,
) -> list[str]:
  """User turns that the target samples behind the given openings.

  Turns that do not end within `max_tokens` are dropped.
  """
  prompts = encode_openings(target, prefixes)
  done = generate(
    target,
    plain_model(),
    prompts,
    max_new_tokens=max_tokens,
    temperature=1.0,
    top_k=top_k,
    seed=seed,
    capacity=capacity,
  )
  return [
    prefix + c.text
    for prefix, c in zip(prefixes, done.completions, strict=True)
    if c.finish == 'stop' and (prefix + c.text).strip()
  ]


def encode_turns(
  target: Target, turns: Sequence[str], max_prompt: int
) -> list[list[int]]:
  """Prompt ids of user turns; those over `max_prompt` tokens are dropped."""
  prompts = [target.tokenizer.encode_chat([t]) for t in turns]
  return [p for p in prompts if len(p) <= max_prompt]


def answer(
  target: Target, prompts: Sequence[Sequence[int]], length: int
) -> Sequences:
  """Greedy answers to prompts, as sequences of at most `length` tokens.

  Answers shorter than 8 tokens are dropped.
  """
  done = generate(
    target,
    plain_model(),
    prompts,
    max_new_tokens=[length - len(p) for p in prompts],
    capacity=length + 1,
  )
  rows = [
    (p, c.tokens)
    for p, c in zip(prompts, done.completions, strict=True)
    if len(c.tokens) >= 8
  ]
  tokens_NT = np.zeros((len(rows), length), np.int32)
  for row, (p, a) in zip(tokens_NT, rows, strict=True):
    row[: len(p)] = p
    row[len(p) : len(p) + len(a)] = a
  return Sequences(
    tokens_NT,
    np.array([len(p) for p, _ in rows], np.int32),
    np.array([len(p) + len(a) for p, a in rows], np.int32),
  )


def join(parts: Sequence[Sequences]) -> Sequences:
  """All sequences of several, without exact repetitions.

  Raises:
    InputError: there are none.
  """
  if not sum(len(p.length_N) for p in parts):
    raise InputError(
      'no sequences: every prompt was too long, or every turn or answer was '
      'dropped'
    )
  tokens = np.concatenate([p.tokens_NT for p in parts])
  _, first = np.unique(tokens, axis=0, return_index=True)
  first = np.sort(first)
  return Sequences(
    tokens[first],
    np.concatenate([p.answer_N for p in parts])[first],
    np.concatenate([p.length_N for p in parts])[first],
  )


def manifest_path(path: pathlib.Path) -> pathlib.Path:
  """The description beside a data file: who wrote it, and how."""
  return path.with_name('manifest.json')


def load_manifest(path: pathlib.Path) -> dict[str, Any]:
  """The description of the data file `path`; has `target` and `head_hash`.

  Raises:
    InputError: it is missing or damaged.
  """
  manifest = read_json(manifest_path(path))
  for field in ('target', 'head_hash', 'sha256'):
    if field not in manifest:
      raise InputError(f'{manifest_path(path)}: {field!r} is missing')
  if path.is_file() and sha256_of(path) != manifest['sha256']:
    raise InputError(
      f'{manifest_path(path)} does not describe {path.name} (an interrupted '
      'write?); write the data again'
    )
  return manifest


def save(
  data: Sequences, path: pathlib.Path, manifest: Mapping[str, Any]
) -> None:
  """Writes sequences as one compressed file, then their description.

  Each is replaced in one step; the description names the file's hash, so that
  an interruption between the two does not go unnoticed.
  """
  buffer = io.BytesIO()
  np.savez_compressed(
    buffer,
    tokens=data.tokens_NT.astype(
      np.uint32 if data.tokens_NT.max() > 65535 else np.uint16
    ),
    answer=data.answer_N,
    length=data.length_N,
  )
  atomic_write(path, buffer.getvalue())
  whole = dict(portable(manifest)) | {'sha256': sha256_of(path)}
  atomic_write(manifest_path(path), json.dumps(whole, indent=2).encode())


def load(path: pathlib.Path) -> Sequences:
  """Sequences that `save` wrote.

  Raises:
    InputError: the file is missing or damaged.
  """
  try:
    with np.load(path) as f:
      data = Sequences(f['tokens'].astype(np.int32), f['answer'], f['length'])
  except FileNotFoundError:
    raise InputError(f'{path}: no such file; write it first') from None
  except Exception as error:  # zipfile and numpy each raise their own
    raise InputError(f'{path}: not a data file ({error})') from None
  N, *rest = data.tokens_NT.shape or (0,)
  fits = N and len(rest) == 1 and data.answer_N.shape == (N,)
  if not fits or data.length_N.shape != (N,) or data.length_N.max() > rest[0]:
    raise InputError(
      f'{path}: not a data file (tokens {data.tokens_NT.shape}, answer '
      f'{data.answer_N.shape}, length {data.length_N.shape})'
    )
  return data
