"""The server: what OpenAI's clients send and get, and what it refuses."""

import asyncio
import dataclasses
import json
import threading
import time

import pytest
from starlette.testclient import TestClient

from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.ticket import Closed, Request
from spinejax.drafters.loading import plain_model
from spinejax.serve.app import make_app
from spinejax.serve.schema import Limits
from tests.decode import toy

SETTINGS = Settings(slots=2, capacity=256, chunks=(64,), rounds=2, queue=3)
MESSAGES = [
  {'role': 'system', 'content': '3 1 4'},
  {'role': 'user', 'content': [{'type': 'text', 'text': '1 5'}]},
]
CHAT = dict(messages=MESSAGES, max_tokens=9, temperature=0)
ANSWERS = '/v1/completions', '/v1/chat/completions'


SCOPE = {
  'type': 'http', 'method': 'POST', 'path': ANSWERS[1], 'headers': [],
  'query_string': b'',
}  # fmt: skip


class Words(toy.Ids):
  """Text is ids in decimal, each with a space before it."""

  def decode(self, ids):
    return ''.join(f' {int(i)}' for i in ids)

  def encode(self, text):
    return [int(word) for word in text.split()]

  def render(self, messages):
    return ' '.join(message['content'] for message in messages)


def make_engine(settings=SETTINGS, **more):
  target = toy.target()
  target = dataclasses.replace(target, tokenizer=Words())
  return Engine(target, plain_model(), settings, **more)


@pytest.fixture(scope='module')
def engine():
  made = make_engine()
  made.warm_up(sampled=False)
  return made


@pytest.fixture(scope='module')
def client(engine):
  with TestClient(make_app(engine, Limits(max_tokens=90, body=2000))) as made:
    yield made


def said(prompt, count=9):
  """What the target says after a prompt."""
  engine = make_engine()
  ticket = engine.submit(Request(prompt, count))
  engine.run()
  return Words().decode(ticket.tokens)


@pytest.fixture(scope='module')
def answer(engine):
  """What it says after the chat."""
  return said([3, 1, 4, 1, 5])


def events(response):
  """The objects of a stream, which has to end as it should."""
  lines = response.text.split('\n\n')
  assert lines[-2:] == ['data: [DONE]', '']
  return [json.loads(line.removeprefix('data: ')) for line in lines[:-2]]


def test_chat(client, answer):
  found = client.post('/v1/chat/completions', json=CHAT).json()
  assert found['object'] == 'chat.completion' and found['id']
  assert found['model'] == 'toy-qwen3'
  (choice,) = found['choices']
  assert choice['message']['role'] == 'assistant'
  assert choice['message']['content'] == answer
  assert choice['finish_reason'] == 'length'
  assert found['usage']['prompt_tokens'] == 5
  assert found['usage']['completion_tokens'] == 9


def test_chat_streamed(client, answer):
  more = dict(stream=True, stream_options={'include_usage': True})
  response = client.post('/v1/chat/completions', json=CHAT | more)
  assert response.headers['content-type'].startswith('text/event-stream')
  first, *parts, last, used = events(response)
  assert first['choices'][0]['delta'] == {'role': 'assistant', 'content': ''}
  assert len(parts) > 1 and len({part['id'] for part in parts}) == 1
  texts = [
    part['choices'][0]['delta'].get('content', '') for part in [*parts, last]
  ]
  assert ''.join(texts) == answer
  assert last['choices'][0]['finish_reason'] == 'length'
  assert used['choices'] == [] and used['usage']['total_tokens'] == 14


@pytest.mark.parametrize('stream', (False, True))
def test_completions_of_several_prompts(client, stream):
  """Text or ids; more of them than there are slots."""
  prompts = toy.prompts(5, 70, 2)
  texts = [' '.join(map(str, prompt)) for prompt in prompts]
  for given in (texts, prompts):
    body = dict(prompt=given, max_tokens=9, temperature=0, stream=stream)
    response = client.post('/v1/completions', json=body)
    found = ['', '', '']
    for part in events(response) if stream else [response.json()]:
      for choice in part['choices']:
        found[choice['index']] += choice['text']
    assert found == [said(prompt) for prompt in prompts]


def test_a_seed_is_an_answer(client):
  body = dict(prompt=[1, 2], max_tokens=20, temperature=1)
  found = [
    client.post('/v1/completions', json=body | seed).json()['choices'][0]
    for seed in (dict(seed=4), dict(seed=4), {}, {})
  ]
  texts = [choice['text'] for choice in found]
  assert texts[0] == texts[1] and len(set(texts)) == 3


def test_without_a_cap_there_is_one(client):
  """The limit's, or what the caches have room for."""
  for size, told in ((2, 90), (200, 55)):
    prompt = toy.prompts(size)[0]
    body = dict(prompt=prompt, temperature=0)
    found = client.post('/v1/completions', json=body).json()
    assert found['usage']['completion_tokens'] == told


def test_stop_strings(client, engine, answer):
  text = answer
  stop = text[len(text) // 2 : len(text) // 2 + 3]
  body = CHAT | dict(max_tokens=200, stop=[stop, 'never'])
  before = engine.counters.finished.copy()
  (choice,) = client.post('/v1/chat/completions', json=body).json()['choices']
  assert choice['message']['content'] == text[: text.index(stop)]
  assert choice['finish_reason'] == 'stop'
  while engine.running:
    time.sleep(0.001)
  assert engine.counters.finished - before == {'stop': 1}


def test_an_answer_of_a_given_length(answer):
  """Whatever would end it: what load generators ask for."""
  ends = [int(word) for word in answer.split()]
  engine = make_engine(stop_ids=ends[2:4])
  with TestClient(make_app(engine)) as client:
    for more, finish in ((dict(ignore_eos=True), 'length'), ({}, 'stop')):
      found = client.post('/v1/chat/completions', json=CHAT | more).json()
      (choice,) = found['choices']
      assert choice['finish_reason'] == finish
      same = choice['message']['content'] == answer
      assert same == (finish == 'length')


def test_what_asks_for_nothing_is_taken(client, answer):
  """What clients send of themselves, and an answer that they send back."""
  more = dict(
    model=None, n=1, logprobs=False, logit_bias={}, tools=[], stop=None,
    frequency_penalty=0.0, response_format={'type': 'text'}, min_tokens=0,
    tool_choice='auto', parallel_tool_calls=True, user='a',
  )  # fmt: skip
  messages = [dict(MESSAGES[0], refusal=None, tool_calls=[]), MESSAGES[1]]
  body = CHAT | more | dict(messages=messages)
  found = client.post('/v1/chat/completions', json=body).json()
  assert found['choices'][0]['message']['content'] == answer


def test_models_health_and_metrics(client):
  (model,) = client.get('/v1/models').json()['data']
  assert model['id'] == 'toy-qwen3'
  assert client.get('/health').json() == {'status': 'ok'}
  client.post('/v1/chat/completions', json=CHAT | dict(model='toy-qwen3'))
  lines = client.get('/metrics').text.splitlines()
  found = dict(line.rsplit(' ', 1) for line in lines if line[0] != '#')
  assert float(found['spinejax_emitted_tokens_total']) >= 9
  assert float(found['spinejax_running_requests']) == 0
  of_length = 'spinejax_finished_requests_total{reason="length"}'
  ended = float(found[of_length])
  assert 0 < ended <= float(found['spinejax_first_token_seconds_count'])


@pytest.mark.parametrize(
  'path, change, message',
  (
    (0, dict(prompt=None), 'prompt = None, expected a string, ...'),
    (0, dict(prompt=[1, 'a']), "prompt = 1, expected a string, ..."),
    (0, dict(prompt=[]), 'prompt is empty'),
    (0, dict(prompt=[61]), 'prompt has token id 61, expected 0..60'),
    (0, dict(max_tokens=0), 'max_tokens = 0, expected 1..2147483647'),
    (0, dict(max_tokens='9'), "max_tokens = '9', expected a whole number"),
    (0, dict(max_tokens=300), 'prompt has 1 tokens; with 300 new ones it ...'),
    (0, dict(temperature='hot'), "temperature = 'hot', expected a number"),
    (0, dict(temperature=True), 'temperature = True, expected a number'),
    (0, dict(top_p=2), 'top_p = 2, expected above 0 and at most 1'),
    (0, dict(seed='1'), "seed = '1', expected a whole number"),
    (0, dict(n=2), 'n = 2 is not supported, expected 1'),
    (0, dict(n=True), 'n = True is not supported, expected 1'),
    (0, dict(logprobs=3), 'logprobs = 3 is not supported, expected False'),
    (0, dict(logprobs=0), 'logprobs = 0 is not supported, expected False'),
    (
      1, dict(response_format={'type': 'json_object'}),
      "response_format = {'type': 'json_object'} is not supported, ...",
    ),
    (0, dict(top_k=float('inf')), 'top_k = inf, expected a whole number, ...'),
    (0, dict(top_k=float('nan')), 'top_k = nan, expected a whole number, ...'),
    (0, dict(temperature=float('nan')), 'temperature = nan, expected 0 ...'),
    (0, dict(max_tokens=10**400), f'max_tokens = 1{"0" * 59}, expected 1...'),
    (0, dict(ignore_eos=1), 'ignore_eos = 1, expected true or false'),
    (
      1, dict(messages=[dict(MESSAGES[0], name='a')]),
      "messages[0].name = 'a' is not supported",
    ),
    (0, dict(prompts='a'), "'prompts' is not a field that is known"),
    (0, dict(messages=[]), "'messages' is not a field that is known"),
    (0, dict(stop=''), "stop = [''], expected at most 4 strings"),
    (0, dict(stop=['a'] * 5), 'stop = [...], expected at most 4 strings'),
    (0, dict(stream=1), 'stream = 1, expected true or false'),
    (0, dict(stream_options=[]), 'stream_options = [], expected include_...'),
    (0, dict(prompt=[[1]] * 4), 'prompt has 4 of them, expected at most 3'),
    (1, dict(messages=[]), 'messages = [], expected a list of them'),
    (
      1, dict(messages=[{'role': 'user', 'content': [{'type': 'image'}]}]),
      'messages[0]: expected a role and content, both text',
    ),
    (1, dict(messages=['hi']), 'messages[0]: expected a role and content, ...'),
  ),
)  # fmt: skip
def test_bad_requests(client, path, change, message):
  body = json.dumps((dict(prompt=[1]), CHAT)[path] | change)
  response = client.post(ANSWERS[path], content=body)
  assert response.status_code == 400
  error = response.json()['error']
  assert error['type'] == 'invalid_request_error'
  start, _, end = message.partition('...')
  assert error['message'].startswith(start) and '\n' not in error['message']
  assert end or '...' in message or error['message'] == message


def test_bad_bodies(client):
  def post(data):
    response = client.post('/v1/completions', content=data)
    return response.status_code, response.json()['error']['message']

  for data in (b'', b'{', b'\xff', b'[' * 1900):
    assert post(data) == (400, 'the body is not JSON')
  assert post(b'[1]') == (400, 'the body is no JSON object')
  large = json.dumps({'prompt': '1 ' * 1200}).encode()
  assert post(large) == (413, 'the body exceeds 2000 bytes')
  other = json.dumps({'prompt': [1], 'model': 'gpt'}).encode()
  assert post(other) == (404, "model 'gpt' does not exist")


def test_what_is_not_there(client):
  for method, path, status, message in (
    ('POST', '/v1/embeddings', 404, 'Not Found: POST /v1/embeddings'),
    ('GET', ANSWERS[0], 405, f'Method Not Allowed: GET {ANSWERS[0]}'),
  ):
    response = client.request(method, path)
    assert response.status_code == status
    assert response.json()['error']['message'] == message


def test_what_breaks_here_is_our_fault(monkeypatch):
  """Not called bad input, whatever kind of error it is."""

  def broken(*_):
    raise ValueError('broken')

  app = make_app(make_engine())
  monkeypatch.setattr(Words, 'render', broken)
  with TestClient(app, raise_server_exceptions=False) as client:
    response = client.post('/v1/chat/completions', json=CHAT)
  assert response.status_code == 500
  assert response.json()['error']['message'] == 'the server has failed'


def test_a_full_queue_and_a_failed_engine_are_told():
  engine = make_engine()
  turns = threading.Event()

  def step():
    turns.wait(5)
    raise RuntimeError('device lost')

  engine.step = step
  with TestClient(make_app(engine)) as client:
    waiting = [engine.submit(Request([1], 2)) for _ in range(SETTINGS.queue)]
    response = client.post('/v1/chat/completions', json=CHAT)
    assert response.status_code == 429
    assert response.headers['retry-after'] == '1'
    error = response.json()['error']
    assert error['message'].startswith('3 requests wait already')
    turns.set()
    while client.get('/health').status_code == 200:
      time.sleep(0.01)
    assert [ticket.finish for ticket in waiting] == ['failed'] * 3
    assert client.post('/v1/chat/completions', json=CHAT).status_code == 503
    # Of those that are past this look at it, none waits forever.
    with pytest.raises(Closed, match='^the engine has ended: device lost$'):
      engine.submit(Request([1], 2))


def test_bodies_that_do_not_arrive():
  """They do not take up a place for long, and break nothing."""
  app = make_app(make_engine(), Limits(bodies=2, body_s=0.05))

  async def talk(*messages):
    """The status and error of a request of which no more than this comes."""
    coming, sent = list(messages), []

    async def receive():
      return coming.pop(0) if coming else await asyncio.Event().wait()

    async def send(message):
      sent.append(message)

    await app(SCOPE, receive, send)
    body = json.loads(sent[1]['body'] or '{}')
    return sent[0]['status'], body and body['error']['message']

  part = {'type': 'http.request', 'body': b'{', 'more_body': True}
  end, gone = part | {'more_body': False}, {'type': 'http.disconnect'}

  async def all_of_them():
    async with app.router.lifespan_context(app):
      slow = [asyncio.ensure_future(talk(part)) for _ in range(2)]
      await asyncio.sleep(0)  # in which they are begun
      full, late = await talk(end), await asyncio.gather(*slow)
      return full, late, await talk(part, gone), await talk(part, end)

  full, late, left, right = asyncio.run(all_of_them())
  assert full == (
    429, '2 requests are on their way, which is all that may; try again later'
  )  # fmt: skip
  assert late == [(408, 'the body took more than 0.05 seconds')] * 2
  assert left == (200, {}) and right == (400, 'the body is not JSON')


def test_a_timeout_is_told(engine):
  with TestClient(make_app(make_engine(), Limits(timeout_s=1e-9))) as client:
    response = client.post('/v1/chat/completions', json=CHAT)
    assert response.status_code == 504
    assert response.json()['error']['message'] == 'the request ended: timeout'
    streamed = client.post('/v1/chat/completions', json=CHAT | {'stream': True})
    assert events(streamed)[-1]['error']['type'] == 'timeout'


@pytest.mark.parametrize('stream', (False, True))
def test_a_client_that_goes_cancels_its_request(stream):
  """Spoken to as a server does, which tells when a connection is lost."""
  engine = make_engine()
  app, sent, lost = make_app(engine), [], asyncio.Event()
  body = json.dumps(CHAT | dict(max_tokens=240, stream=stream)).encode()
  messages = [{'type': 'http.request', 'body': body, 'more_body': False}]

  async def receive():
    if messages:
      return messages.pop()
    await lost.wait()
    return {'type': 'http.disconnect'}

  async def send(message):
    sent.append(message)

  async def talk():
    async with app.router.lifespan_context(app):
      asked = asyncio.ensure_future(app(SCOPE, receive, send))
      while not engine.counters.emitted_tokens:
        await asyncio.sleep(0.001)
      lost.set()
      await asked
      while not engine.counters.finished:
        await asyncio.sleep(0.001)

  asyncio.run(talk())
  assert engine.counters.finished == {'cancelled': 1}
  assert 0 < engine.counters.emitted_tokens < 240
  assert bool(sent) == stream
