"""Serves a target with a drafter over HTTP, as OpenAI's API has it."""

import dataclasses
import socket

from experiments import common
from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.scheduler import Scheduling
from spinejax.drafters.loading import load_drafter
from spinejax.errors import InputError
from spinejax.serve.schema import Limits
from spinejax.sharding import make_mesh
from spinejax.target.loading import load_target


def application(config):
  """The ASGI application, ready to answer; refuses what it cannot serve."""
  try:
    from spinejax.serve.app import make_app
  except ModuleNotFoundError as error:
    raise InputError(
      f'{error.name} is not installed; run: pip install -e ".[serve]"'
    ) from None
  dtype, mesh = common.dtype(config.dtype), make_mesh(config.mesh)
  settings, limits = Settings(**config.engine), Limits(**config.limits)
  target = load_target(config.target, dtype, mesh)
  target = dataclasses.replace(target, name=config.model or target.name)
  block = None if config.drafter == 'plain' else config.block
  draft = load_drafter(config.drafter, target, block=block)
  scheduling = Scheduling() if config.schedule else None
  engine = Engine(target, draft, settings, scheduling=scheduling)
  print(f'compiling for {settings.slots} slots of {settings.capacity} rows')
  engine.warm_up()
  return make_app(engine, limits)


def bind(host: str, port: int) -> socket.socket:
  """A socket at the address, so that one that is taken is not found out after
  minutes of compiling. Whoever comes before it listens is turned away."""
  if not 0 < port < 2**16:
    raise InputError(f'port = {port}, expected 1..65535')
  try:
    family, kind, *_, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM
    )[0]
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
  except OSError as error:
    raise InputError(
      f'host = {host!r}, port = {port}: {error.strerror}'
    ) from None
  return bound


def main(config):
  bound = bind(config.host, config.port)
  app = application(config)
  import uvicorn

  print(f'http://{config.host}:{config.port}/v1')
  settings = uvicorn.Config(
    app, log_level='warning', timeout_graceful_shutdown=5
  )
  uvicorn.Server(settings).run(sockets=[bound])


if __name__ == '__main__':
  common.run(main)
