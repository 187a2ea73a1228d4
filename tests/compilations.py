"""Every program that XLA compiles in this process, as it happens."""

import jax

COMPILATIONS = []


def record(event: str, duration: float, **_):
  del duration
  if event == '/jax/core/compile/backend_compile_duration':
    COMPILATIONS.append(event)


jax.monitoring.register_event_duration_secs_listener(record)
