"""An OpenAI-compatible server over the engine, as an ASGI application.

`/v1/completions`, `/v1/chat/completions` (both also as server-sent events),
`/v1/models`, `/health` and `/metrics`. A request whose client has gone is
cancelled. Nothing that a client sends is run as code, fetched or kept.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from spinejax.decode.engine import Engine
from spinejax.decode.ticket import Closed, Overloaded, Ticket
from spinejax.errors import InputError
from spinejax.serve import schema
from spinejax.serve.metrics import Metrics
from spinejax.serve.text import TextStream
from spinejax.serve.worker import Worker

# Why a request ended that was not answered, as a status and a word.
_UNANSWERED = {
  'timeout': (504, 'timeout'),
  'failed': (500, 'server_error'),
  'cancelled': (500, 'server_error'),
}


def make_app(engine: Engine, limits: schema.Limits | None = None) -> Starlette:
  """The application; it turns the engine while it runs.

  Args:
    engine: warmed up, and turned by nobody else.
    limits: what clients may ask for.
  """
  server = _Server(engine, limits or schema.Limits())
  post, get = ['POST'], ['GET']
  return Starlette(
    routes=[
      Route('/v1/completions', server.completions, methods=post),
      Route('/v1/chat/completions', server.chat, methods=post),
      Route('/v1/models', server.models, methods=get),
      Route('/health', server.health, methods=get),
      Route('/metrics', server.metrics, methods=get),
    ],
    lifespan=server.lifespan,
    exception_handlers={HTTPException: _no_endpoint, Exception: _own_fault},
  )


class _TooLarge(Exception):
  """A body beyond the limit."""


class _NoModel(Exception):
  """A model that is not served."""


class _Choice:
  """One request of a body on its way: its ticket, and what comes of it."""

  def __init__(self, engine: Engine, request, stops, metrics: Metrics):
    self._loop = asyncio.get_running_loop()
    self._events: asyncio.Queue = asyncio.Queue()
    self._text = TextStream(engine.target.tokenizer, stops)
    self._metrics = metrics
    self.ticket: Ticket = engine.submit(request, self._from_engine)

  def _from_engine(self, ticket: Ticket, new: np.ndarray) -> None:
    if ticket.finish is not None:
      self._metrics.observe(ticket)
    self._loop.call_soon_threadsafe(
      self._events.put_nowait, (new.tolist(), ticket.finish)
    )

  async def parts(self) -> AsyncIterator[tuple[str, str | None]]:
    """New text, and why it ended at the end.

    Raises:
      _Unanswered: it ended without an answer.
    """
    finish = None
    while finish is None:
      new, finish = await self._events.get()
      text = self._text.push(new)
      if finish is not None:
        text += self._text.end()
      if self._text.stopped:
        self.ticket.cancel('stop')
        finish = 'stop'
      if finish in _UNANSWERED:
        raise _Unanswered(finish)
      if text or finish is not None:
        yield text, finish


class _Unanswered(Exception):
  """A request timed out, or the engine failed."""

  def error(self) -> tuple[int, dict]:
    """The HTTP status and OpenAI's object."""
    status, kind = _UNANSWERED[self.args[0]]
    return status, _error(f'the request ended: {self.args[0]}', kind)


class _Server:
  """The endpoints."""

  def __init__(self, engine: Engine, limits: schema.Limits):
    self._engine, self._limits = engine, limits
    self._metrics = Metrics(engine)
    self._worker: Worker | None = None
    self._began, self._bodies = int(time.time()), 0

  @contextlib.asynccontextmanager
  async def lifespan(self, app: Starlette):
    del app
    with Worker(self._engine) as self._worker:
      yield

  async def health(self, request: HTTPRequest) -> Response:
    del request
    if self._worker is None or self._worker.error is not None:
      return JSONResponse({'status': 'failed'}, 503)
    return JSONResponse({'status': 'ok'})

  async def metrics(self, request: HTTPRequest) -> Response:
    del request
    return Response(
      self._metrics.text(), media_type='text/plain; version=0.0.4'
    )

  async def models(self, request: HTTPRequest) -> Response:
    del request
    model = {
      'id': self._engine.target.name, 'object': 'model',
      'created': self._began, 'owned_by': 'spinejax',
    }  # fmt: skip
    return JSONResponse({'object': 'list', 'data': [model]})

  async def completions(self, request: HTTPRequest) -> Response:
    return await self._answer(request, chat=False)

  async def chat(self, request: HTTPRequest) -> Response:
    return await self._answer(request, chat=True)

  async def _answer(self, request: HTTPRequest, chat: bool) -> Response:
    if self._worker is None or self._worker.error is not None:
      return _refusal(503, 'the engine has failed', 'server_error')
    try:
      body = await self._body(request)
      # Long texts take a while, in which others are answered.
      asked = await asyncio.to_thread(self._understand, body, chat)
      choices = self._submit(asked)
    except ClientDisconnect:
      return Response()  # to nobody
    except _TooLarge:
      return _refusal(413, f'the body exceeds {self._limits.body} bytes')
    except TimeoutError:
      late = f'the body took more than {self._limits.body_s:g} seconds'
      return _refusal(408, late, headers={'Connection': 'close'})
    except _NoModel as error:
      return _refusal(404, f'model {error.args[0]!r:.60} does not exist')
    except InputError as error:
      return _refusal(400, str(error))
    except Overloaded as error:
      return _refusal(429, str(error), 'overloaded', {'Retry-After': '1'})
    except Closed as error:
      return _refusal(503, str(error), 'server_error')
    envelope = {
      'id': f'{"chatcmpl" if chat else "cmpl"}-{uuid.uuid4().hex}',
      'object': 'chat.completion' if chat else 'text_completion',
      'created': int(time.time()),
      'model': self._engine.target.name,
    }
    return _Answer(asked, choices, envelope)

  async def _body(self, request: HTTPRequest) -> bytes:
    """The body, of which no more than is allowed is read."""
    if self._bodies >= self._limits.bodies:
      raise Overloaded(
        f'{self._bodies} requests are on their way, which is all that may; '
        'try again later'
      )
    parts, size = [], 0
    self._bodies += 1
    try:
      async with asyncio.timeout(self._limits.body_s):
        async for part in request.stream():
          size += len(part)
          if size > self._limits.body:
            raise _TooLarge
          parts.append(part)
    finally:
      self._bodies -= 1
    return b''.join(parts)

  def _understand(self, data: bytes, chat: bool) -> schema.Asked:
    """What a body asks for."""
    try:
      body = json.loads(data)
    except (ValueError, RecursionError):
      raise InputError('the body is not JSON') from None
    asked = schema.parse(self._engine, body, self._limits, chat)
    model = body.get('model')
    if model is not None and model != self._engine.target.name:
      raise _NoModel(model)
    return asked

  def _submit(self, asked: schema.Asked) -> list[_Choice]:
    """Queues all requests of a body, or none."""
    choices = []
    try:
      for request in asked.requests:
        choices.append(
          _Choice(self._engine, request, asked.stops, self._metrics)
        )
    except (InputError, Overloaded, Closed):
      for one in choices:
        one.ticket.cancel()
      raise
    return choices


class _Answer:
  """The response: whole or as events. Requests end with it, however it ends."""

  def __init__(self, asked: schema.Asked, choices: list[_Choice], envelope):
    self._asked, self._choices = asked, choices
    self._envelope = envelope

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    send_all = self._stream if self._asked.stream else self._whole
    answering = asyncio.ensure_future(send_all(scope, receive, send))
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
      await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
      if answering.done():
        answering.result()  # raises what it raised
    finally:
      for one in self._choices:
        one.ticket.cancel()
      answering.cancel()
      gone.cancel()
      await asyncio.gather(answering, gone, return_exceptions=True)

  async def _whole(self, scope, receive, send) -> None:
    chat, found = self._asked.chat, []
    try:
      for i, one in enumerate(self._choices):
        parts = [part async for part in one.parts()]
        text, finish = ''.join(text for text, _ in parts), parts[-1][1]
        found.append(schema.choice(chat, i, text, finish, False))
    except _Unanswered as error:
      status, body = error.error()
      await JSONResponse(body, status)(scope, receive, send)
      return
    used = schema.usage([one.ticket for one in self._choices])
    body = self._envelope | {'choices': found, 'usage': used}
    await JSONResponse(body)(scope, receive, send)

  async def _stream(self, scope, receive, send) -> None:
    del scope, receive
    await send({
      'type': 'http.response.start', 'status': 200,
      'headers': [
        (b'content-type', b'text/event-stream; charset=utf-8'),
        (b'cache-control', b'no-cache'),
      ],
    })  # fmt: skip
    async for event in self._events():
      await send({
        'type': 'http.response.body', 'body': f'data: {event}\n\n'.encode(),
        'more_body': True,
      })  # fmt: skip
    await send({'type': 'http.response.body', 'body': b'', 'more_body': False})

  async def _events(self) -> AsyncIterator[str]:
    chat, merged = self._asked.chat, asyncio.Queue()
    envelope = dict(self._envelope)
    if chat:
      envelope['object'] = 'chat.completion.chunk'
      for i in range(len(self._choices)):
        first = schema.choice(chat, i, '', None, True)
        first['delta'] = {'role': 'assistant', 'content': ''}
        yield json.dumps(envelope | {'choices': [first]})

    async def forward(i: int, one: _Choice) -> None:
      try:
        async for text, finish in one.parts():
          merged.put_nowait(schema.choice(chat, i, text, finish, True))
      except _Unanswered as error:
        merged.put_nowait(error)

    async with asyncio.TaskGroup() as tasks:
      for i, one in enumerate(self._choices):
        tasks.create_task(forward(i, one))
      left = len(self._choices)
      while left:
        part = await merged.get()
        if isinstance(part, _Unanswered):
          yield json.dumps(part.error()[1])
          left -= 1
          continue
        left -= part['finish_reason'] is not None
        yield json.dumps(envelope | {'choices': [part]})
    if self._asked.usage:
      used = schema.usage([one.ticket for one in self._choices])
      yield json.dumps(envelope | {'choices': [], 'usage': used})
    yield '[DONE]'


async def _no_endpoint(request: HTTPRequest, error: Exception) -> Response:
  what = f'{error.detail}: {request.method} {request.url.path}'
  return _refusal(error.status_code, what, headers=error.headers)


async def _own_fault(request: HTTPRequest, error: Exception) -> Response:
  del request, error  # the log has it
  return _refusal(500, 'the server has failed', 'server_error')


async def _disconnected(receive: Receive) -> None:
  while (await receive())['type'] != 'http.disconnect':
    pass


def _error(message: str, kind: str) -> dict:
  return {
    'error': {'message': message, 'type': kind, 'param': None, 'code': None}
  }


def _refusal(
  status: int, message: str, kind: str = 'invalid_request_error', headers=None
) -> Response:
  return JSONResponse(_error(message, kind), status, headers)
