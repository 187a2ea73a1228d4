"""Serves a target with a drafter over HTTP, as OpenAI's API has it."""

import dataclasses

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
  if not 0 < config.port < 2**16:
    raise InputError(f'port = {config.port}, expected 1..65535')
  common.positive(config, 'connections')
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


def main(config):
  app = application(config)
  import uvicorn

  print(f'http://{config.host}:{config.port}/v1')
  uvicorn.run(
    app, host=config.host, port=config.port, log_level='warning',
    limit_concurrency=config.connections, timeout_graceful_shutdown=5,
  )  # fmt: skip


if __name__ == '__main__':
  common.run(main)
