"""The server as its binary makes it, and what it refuses before it loads."""

import pathlib
import socket

import pytest
from starlette.testclient import TestClient

from configs import serve as configs
from experiments import serve

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'


def config_of(**changed):
  config = configs.get_config()
  config.target = 'no/such/target.gguf'
  config.update_from_flattened_dict(changed)
  return config


def test_serve():
  config = config_of(**{
    'target': str(TINY), 'drafter': 'plain', 'model': 'tiny',
    'engine.slots': 1, 'engine.capacity': 64, 'engine.chunks': (16,),
    'engine.widths': (), 'engine.prefix_blocks': 2,
  })  # fmt: skip
  prompt = [int(i) for i in range(20)]
  body = dict(model='tiny', prompt=prompt, max_tokens=3, temperature=0)
  with TestClient(serve.application(config)) as client:
    first, again = (
      client.post('/v1/completions', json=body).json() for _ in range(2)
    )
  assert first['choices'] == again['choices']
  found = [a['usage']['prompt_tokens_details'] for a in (first, again)]
  assert found == [{'cached_tokens': 0}, {'cached_tokens': 16}]


@pytest.mark.parametrize(
  'change, message',
  (
    ({'dtype': 'int8'}, "dtype = 'int8', expected float32 or bfloat16"),
    ({'engine.slots': 0}, 'slots = 0, expected 1..2147483647'),
    ({'limits.body': 0}, 'limits.body = 0, expected 1..2147483647'),
    ({'limits.timeout_s': 0.0}, 'limits.timeout_s = 0.0, expected above 0'),
    ({'limits.body_s': 0.0}, 'limits.body_s = 0.0, expected above 0'),
    ({}, 'no/such/target.gguf: no such file'),
    ({'target': str(TINY), 'drafter': 'x'}, "drafter 'x' is neither ..."),
  ),
)
def test_bad_input(change, message, refused):
  with refused(message):
    serve.application(config_of(**change))


def test_an_address_that_cannot_be_had_is_told_before_anything_is_loaded(
  refused,
):
  config = config_of()
  with socket.create_server((config.host, 0)) as other:
    config.port = other.getsockname()[1]
    with refused(
      f"host = '127.0.0.1', port = {config.port}: Address already in use"
    ):
      serve.main(config)
  for port in (0, 2**16):
    with refused(f'port = {port}, expected 1..65535'):
      serve.bind(config.host, port)
  with refused("host = 'no host', port = 80: ..."):
    serve.bind('no host', 80)
