"""OpenAI's requests and answers, as far as an engine can give them.

What cannot be done is refused, not passed over: an answer that silently lacks
a penalty is another answer.
"""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from spinejax.decode.engine import Engine
from spinejax.decode.request import whole
from spinejax.decode.ticket import Request, Ticket
from spinejax.errors import InputError

_MOST_STOPS, _MOST_PROMPTS = 4, 16
# Fields that are taken with a value that asks for nothing, as null always does.
_NEUTRAL = {
  'n': (1,), 'best_of': (1,), 'echo': (False,), 'suffix': ('',),
  'logprobs': (False,), 'top_logprobs': (0,), 'logit_bias': ({},),
  'frequency_penalty': (0,), 'presence_penalty': (0,),
  'repetition_penalty': (1,), 'min_p': (0,), 'min_tokens': (0,),
  'tools': ([],), 'tool_choice': ('none', 'auto'),
  'parallel_tool_calls': (False, True), 'response_format': ({'type': 'text'},),
}  # fmt: skip
_IGNORED = ('user', 'metadata', 'store', 'service_tier')
_COMMON = (
  'model', 'max_tokens', 'temperature', 'top_p', 'top_k', 'seed', 'stop',
  'stream', 'stream_options', 'ignore_eos',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a server allows.

  Attributes:
    max_tokens: of an answer, where the request names none and there is room.
    timeout_s: seconds that a request may take; None: any.
    body: bytes of a request.
    bodies: requests whose bodies are on their way.
    body_s: seconds that a body may take to arrive.
  """

  max_tokens: int = 256
  timeout_s: float | None = None
  body: int = 2**20
  bodies: int = 512
  body_s: float = 30.0

  def __post_init__(self):
    for field in ('max_tokens', 'body', 'bodies'):
      whole(f'limits.{field}', getattr(self, field), 1, 2**31 - 1)
    for field in ('timeout_s', 'body_s'):
      value = getattr(self, field)
      if not (value is None and field == 'timeout_s') and not value > 0:
        raise InputError(f'limits.{field} = {value}, expected above 0')


@dataclasses.dataclass(frozen=True)
class Asked:
  """A parsed body.

  Attributes:
    requests: for each choice of the answer its request.
    stops: strings that end a choice.
    stream: whether tokens are wanted as they come.
    usage: whether the stream shall end with token counts.
    chat: which of the two kinds of answer is wanted.
  """

  requests: list[Request]
  stops: tuple[str, ...]
  stream: bool
  usage: bool
  chat: bool


def parse(engine: Engine, body: Any, limits: Limits, chat: bool) -> Asked:
  """What a body of `/v1/completions` or `/v1/chat/completions` asks for.

  Raises:
    InputError: names the field, its value and what was expected.
  """
  if not isinstance(body, Mapping):
    raise InputError('the body is no JSON object')
  own = ('messages', 'max_completion_tokens') if chat else ('prompt',)
  for field, value in body.items():
    if field in _NEUTRAL:
      allowed = _NEUTRAL[field]
      # 0 and False are equal, and `logprobs` tells them apart.
      same = any(
        value == one and isinstance(value, bool) == isinstance(one, bool)
        for one in allowed
      )
      if value is not None and not same:
        raise InputError(
          f'{field} = {value!r:.60} is not supported, expected '
          f'{" or ".join(map(repr, allowed))}'
        )
    elif field not in (*_COMMON, *own, *_IGNORED):
      raise InputError(f'{field!r:.60} is not a field that is known')
  given = {field: value for field, value in body.items() if value is not None}
  read = _chat if chat else _prompts
  prompts = read(engine, given)
  stream = _flag(given, 'stream')
  options = given.get('stream_options', {})
  if not isinstance(options, Mapping) or set(options) - {'include_usage'}:
    raise InputError(
      f'stream_options = {options!r:.60}, expected include_usage only'
    )
  seed = given.get('seed')
  if seed is None:
    seed = secrets.randbits(31)
  cap = given.get('max_completion_tokens', given.get('max_tokens'))
  if cap is not None:
    whole('max_tokens', cap, 1, 2**31 - 1)
  requests = [
    Request(
      prompt,
      cap or max(min(limits.max_tokens, engine.room(len(prompt))), 1),
      _number(given, 'temperature', 1.0),
      _number(given, 'top_k', 0),
      _number(given, 'top_p', 1.0),
      seed + i if type(seed) is int else seed,
      ignore_eos=_flag(given, 'ignore_eos'),
      timeout_s=limits.timeout_s,
    )
    for i, prompt in enumerate(prompts)
  ]
  return Asked(
    requests, _stops(given), stream, _flag(options, 'include_usage'), chat
  )


def _number(given: Mapping, field: str, default: float):
  value = given.get(field, default)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise InputError(f'{field} = {value!r:.60}, expected a number')
  return value


def _flag(given: Mapping, field: str) -> bool:
  value = given.get(field, False)
  if type(value) is not bool:
    raise InputError(f'{field} = {value!r:.60}, expected true or false')
  return value


def _stops(given: Mapping) -> tuple[str, ...]:
  stops = given.get('stop', [])
  stops = [stops] if isinstance(stops, str) else stops
  right = isinstance(stops, list) and len(stops) <= _MOST_STOPS
  if not right or not all(isinstance(s, str) and s for s in stops):
    raise InputError(
      f'stop = {stops!r:.60}, expected at most {_MOST_STOPS} strings'
    )
  return tuple(stops)


def _prompts(engine: Engine, given: Mapping) -> list[list[int]]:
  """Token ids of one prompt or several, given as text or as ids."""
  prompt = given.get('prompt')
  several = isinstance(prompt, list) and prompt
  if not several or all(type(token) is int for token in prompt):
    prompt = [prompt]
  most = min(_MOST_PROMPTS, engine.settings.queue)  # or they never fit
  if len(prompt) > most:
    raise InputError(
      f'prompt has {len(prompt)} of them, expected at most {most}'
    )
  found = []
  for one in prompt:
    if isinstance(one, str):
      one = engine.target.tokenizer.encode(one)
    elif not isinstance(one, list) or not all(type(t) is int for t in one):
      raise InputError(
        f'prompt = {one!r:.60}, expected a string, token ids or a list of them'
      )
    found.append(one)
  return found


def _chat(engine: Engine, given: Mapping) -> list[list[int]]:
  """Token ids of the messages, by the target's own template."""
  messages = given.get('messages')
  if not isinstance(messages, list) or not messages:
    raise InputError(f'messages = {messages!r:.60}, expected a list of them')
  turns = []
  for i, message in enumerate(messages):
    message = message if isinstance(message, Mapping) else {}
    role, content = message.get('role'), message.get('content')
    if isinstance(content, list):
      content = _joined(content)
    if not isinstance(role, str) or not isinstance(content, str):
      raise InputError(f'messages[{i}]: expected a role and content, both text')
    # Clients that send an answer back send what it has not as null or [].
    for field, value in message.items():
      if value and field not in ('role', 'content'):
        raise InputError(
          f'messages[{i}].{field!s:.60} = {value!r:.60} is not supported'
        )
    turns.append({'role': role, 'content': content})
  tokenizer = engine.target.tokenizer
  return [tokenizer.encode(tokenizer.render(turns))]


def _joined(parts: Sequence) -> str | None:
  """The text of parts; None if one is not text."""
  texts = [
    part.get('text')
    for part in parts
    if isinstance(part, Mapping) and part.get('type') == 'text'
  ]
  whole = len(texts) == len(parts) and all(isinstance(t, str) for t in texts)
  return ''.join(texts) if whole else None


def choice(
  chat: bool, index: int, text: str, finish: str | None, part: bool
) -> dict:
  """A choice of an answer, or a part of it."""
  found = {'index': index, 'finish_reason': finish, 'logprobs': None}
  if not chat:
    return found | {'text': text}
  if part:
    return found | {'delta': {'content': text} if text else {}}
  return found | {'message': {'role': 'assistant', 'content': text}}


def usage(tickets: Sequence[Ticket]) -> dict:
  """Token counts of all choices together."""
  asked = sum(len(ticket.request.prompt) for ticket in tickets)
  told = sum(len(ticket.tokens) for ticket in tickets)
  cached = sum(ticket.cached for ticket in tickets)
  return {
    'prompt_tokens': asked,
    'completion_tokens': told,
    'total_tokens': asked + told,
    'prompt_tokens_details': {'cached_tokens': cached},
  }
