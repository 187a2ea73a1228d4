"""Text to token ids and back, and the model's own chat template."""

import dataclasses
import datetime
import functools
import pathlib
import reprlib
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.sandbox
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from spinejax.errors import InputError
from spinejax.target.parse import one_line, read_json, understood

_SPLIT_GPT4 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def _byte_level(split: str | None):
  """Byte-level pre-tokenizer after an optional regex split."""
  if split is None:
    return pre_tokenizers.Sequence(
      [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
      ]
    )
  return pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(split), 'isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )


# GGUF names a pre-tokenizer; these are the ones of the supported families.
_PRE_TOKENIZERS = {
  'smollm': (None, None),
  'qwen2': (_SPLIT_GPT4, normalizers.NFC),
  'llama-bpe': (_SPLIT_GPT4.replace(r'\p{N}|', r'\p{N}{1,3}|', 1), None),
}
_SPECIALS = ('bos_token', 'eos_token')
_SPECIAL_TOKEN_TYPES = (3, 4)  # control, user-defined


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A tokenizer with its chat template.

  Attributes:
    inner: the `tokenizers` object.
    stop_ids: ids that end an answer.
    template: the chat template (jinja), or None for a base model.
    specials: `bos_token` and `eos_token`, as templates name them.
  """

  inner: tokenizers.Tokenizer
  stop_ids: tuple[int, ...]
  template: str | None
  specials: dict[str, str]

  @functools.cached_property
  def size(self) -> int:
    """The largest id and one: ids may have gaps."""
    ids = self.inner.get_vocab(with_added_tokens=True).values()
    return max(ids, default=-1) + 1

  def encode(self, text: str) -> list[int]:
    """Ids of the text; special tokens in it are recognised, none added.

    Raises:
      InputError: the text has half a surrogate pair, which no encoding has.
    """
    _check_unicode(text)
    return self.inner.encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """`encode` of many texts, on all cores.

    Raises:
      InputError: as `encode`.
    """
    for text in texts:
      _check_unicode(text)
    done = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
    return [one.ids for one in done]

  def decode(self, ids: Sequence[int], keep_special: bool = False) -> str:
    """Text of the ids, by default without special tokens."""
    ids = [int(i) for i in ids]
    return self.inner.decode(ids, skip_special_tokens=not keep_special)

  def decode_batch(self, answers: Sequence[np.ndarray]) -> list[str]:
    """`decode` of many answers, on all cores."""
    ids = [answer.tolist() for answer in answers]
    return self.inner.decode_batch(ids, skip_special_tokens=True)

  def render(self, messages: Sequence[dict[str, str]]) -> str:
    """The chat as the model expects it, opened for the assistant's turn.

    Args:
      messages: `{'role': ..., 'content': ...}` in order.

    Raises:
      InputError: the model has no chat template, or it refuses the messages.
    """
    if self.template is None:
      raise InputError('this target has no chat template; pass token ids')
    try:
      return _compiled(self.template).render(
        messages=list(messages), add_generation_prompt=True, **self.specials
      )
    except jinja2.TemplateError as error:
      raise InputError(f'chat template: {one_line(error)}') from None
    except Exception as error:  # what a template computes may fail in any way
      raise InputError(
        f'chat template: {type(error).__name__}: {one_line(error)}'
      ) from None

  def encode_turns(self, turns: Sequence[str]) -> list[list[int]]:
    """Ids of many chats of one user turn each."""
    return self.encode_batch(
      [self.render([{'role': 'user', 'content': turn}]) for turn in turns]
    )

  def encode_chat(self, turns: Sequence[str]) -> list[int]:
    """Ids of a chat of user and assistant turns, alternating."""
    roles = ('user', 'assistant')
    return self.encode(
      self.render(
        [{'role': roles[i % 2], 'content': t} for i, t in enumerate(turns)]
      )
    )


def _check_unicode(text: str) -> None:
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as error:
    raise InputError(
      f'the text is not valid Unicode: {text[error.start]!r} at character '
      f'{error.start}'
    ) from None


@functools.lru_cache
def _compiled(template: str) -> jinja2.Template:
  """A chat template, compiled once for all chats."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True,
    extensions=['jinja2.ext.loopcontrols'],
  )  # fmt: skip

  def refuse(message):
    raise jinja2.TemplateError(message)

  env.globals['raise_exception'] = refuse
  env.globals['strftime_now'] = lambda f: datetime.datetime.now().strftime(f)
  return env.from_string(template)


def tokenizer_of_gguf(fields: dict, source: str) -> Tokenizer:
  """Tokenizer from GGUF metadata.

  Raises:
    InputError: the file has another kind of tokenizer, or none.
  """
  with understood(source):
    return _tokenizer_of_gguf(fields, source)


def _tokenizer_of_gguf(fields: dict, source: str) -> Tokenizer:
  kind, pre = (
    fields.get('tokenizer.ggml.model'),
    fields.get('tokenizer.ggml.pre'),
  )
  if kind != 'gpt2' or pre not in _PRE_TOKENIZERS:
    raise InputError(
      f'{source}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not '
      f'supported; expected gpt2 with one of {", ".join(_PRE_TOKENIZERS)}'
    )
  for name in ('tokens', 'merges', 'token_type'):
    if f'tokenizer.ggml.{name}' not in fields:
      raise InputError(f'{source}: metadata tokenizer.ggml.{name} is missing')
  tokens = fields['tokenizer.ggml.tokens']
  merges = [tuple(m.split(' ')) for m in fields['tokenizer.ggml.merges']]
  inner = tokenizers.Tokenizer(
    models.BPE(
      vocab={t: i for i, t in enumerate(tokens)},
      merges=merges,
      ignore_merges=pre == 'llama-bpe',
    )
  )
  split, normalizer = _PRE_TOKENIZERS[pre]
  inner.pre_tokenizer = _byte_level(split)
  inner.decoder = decoders.ByteLevel()
  if normalizer is not None:
    inner.normalizer = normalizer()
  inner.add_special_tokens(
    [
      tokenizers.AddedToken(t, special=True, normalized=False)
      for t, kind in zip(
        tokens, fields['tokenizer.ggml.token_type'], strict=True
      )
      if kind in _SPECIAL_TOKEN_TYPES
    ]
  )
  eos = fields.get('tokenizer.ggml.eos_token_id')
  bos = fields.get('tokenizer.ggml.bos_token_id')
  return Tokenizer(
    inner=inner,
    stop_ids=_stop_ids(inner, [] if eos is None else [eos], source),
    template=_template(fields.get('tokenizer.chat_template'), source),
    specials={
      'bos_token': '' if bos is None else tokens[bos],
      'eos_token': '' if eos is None else tokens[eos],
    },
  )


def tokenizer_of_hf(path: pathlib.Path) -> Tokenizer:
  """Tokenizer from a Hugging Face directory's `tokenizer.json`.

  The stop ids are those of `generation_config.json` (or `config.json`).

  Raises:
    InputError: `tokenizer.json` is missing, or a file is broken.
  """
  with understood(path):
    return _tokenizer_of_hf(path)


def _tokenizer_of_hf(path: pathlib.Path) -> Tokenizer:
  file = path / 'tokenizer.json'
  if not file.is_file():
    raise InputError(f'{file}: no such file (the target has no tokenizer)')
  try:
    inner = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # the Rust side raises bare Exception
    raise InputError(f'{file}: not a tokenizer ({error})') from None
  # Settings of training that the file may carry; they cut and pad prompts.
  inner.no_truncation()
  inner.no_padding()
  file = path / 'tokenizer_config.json'
  settings = read_json(file) if file.exists() else {}
  specials = {k: _special(settings, k, file) for k in _SPECIALS}
  template, jinja = settings.get('chat_template'), path / 'chat_template.jinja'
  if jinja.exists():
    template, file = _read_template(jinja), jinja
  eos = None
  for name in ('generation_config.json', 'config.json'):
    if eos is None and (path / name).exists():
      eos, where = read_json(path / name).get('eos_token_id'), path / name
  if eos is None or eos == []:
    eos, where = inner.token_to_id(specials['eos_token']), path
  eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
  return Tokenizer(
    inner=inner,
    stop_ids=_stop_ids(inner, eos, where),
    template=_template(template, file),
    specials=specials,
  )


def _special(settings: dict, name: str, file: pathlib.Path) -> str:
  """The text of a special token in `tokenizer_config.json`, or ''."""
  value = settings.get(name)
  if isinstance(value, dict):
    value = value.get('content')
  if value is not None and not isinstance(value, str):
    raise InputError(
      f'{file}: {name} = {reprlib.repr(settings[name])}; expected a string'
    )
  return value or ''


def _read_template(file: pathlib.Path) -> str:
  try:
    return file.read_text(encoding='utf-8')
  except OSError as error:
    raise InputError(
      f'chat template: {file} cannot be read ({error.strerror})'
    ) from None
  except UnicodeDecodeError as error:
    raise InputError(f'chat template: {file} is not UTF-8 ({error})') from None


def _template(value: Any, source: str | pathlib.Path) -> str | None:
  """The chat template: a string, or the default of a list of named ones."""
  template = value
  if isinstance(value, list) and all(isinstance(t, dict) for t in value):
    named = {str(t.get('name')): t.get('template') for t in value}
    template = named.get('default')
  if template is not None and not isinstance(template, str):
    raise InputError(
      f'chat template: {reprlib.repr(value)} in {source}; expected a string'
    )
  return template


def _stop_ids(
  inner: tokenizers.Tokenizer, eos: list[Any], source: str | pathlib.Path
) -> tuple[int, ...]:
  """The configured ids, and the end-of-turn tokens the vocabulary knows."""
  for i in eos:
    known = type(i) is int and 0 <= i < 2**32  # as Rust has them
    if not known or inner.id_to_token(i) is None:
      raise InputError(
        f'{source}: eos_token_id = {reprlib.repr(i)}; expected the id of a '
        'token'
      )
  known = ('<|im_end|>', '<|endoftext|>', '<|eot_id|>', '<|end_of_text|>')
  ids = {inner.token_to_id(t) for t in known} | set(eos)
  return tuple(sorted(i for i in ids if i is not None))
