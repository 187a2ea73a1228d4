"""The thread that turns the engine, for servers that are busy elsewhere."""

import threading

from absl import logging

from spinejax.decode.engine import Engine

# Seconds between two looks at whether to end.
_IDLE = 0.2


class Worker:
  """Turns an engine in a thread of its own; a context manager.

  Attributes:
    error: what the engine died of, or None.
  """

  def __init__(self, engine: Engine):
    self._engine, self.error = engine, None
    self._ending = threading.Event()
    self._thread = threading.Thread(target=self._turn, daemon=True)

  def __enter__(self) -> 'Worker':
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._ending.set()
    self._thread.join()
    self._engine.fail(RuntimeError('the server is shutting down'))

  def _turn(self) -> None:
    while not self._ending.is_set():
      try:
        if not self._engine.step():
          self._engine.wait(_IDLE)
      except Exception as error:
        logging.exception('the engine failed')
        self.error = error
        self._engine.fail(error)
        return
