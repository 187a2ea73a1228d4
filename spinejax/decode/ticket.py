"""One request to the engine, and what has become of it."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from spinejax.decode.request import check_context, check_ids, whole
from spinejax.errors import InputError
from spinejax.target.loading import Target
from spinejax.verify.sampling import check_sampling


class Overloaded(Exception):
  """The queue is full: a request that is in order, at the wrong time."""


class Closed(Exception):
  """The engine has failed or was ended, and answers nobody any more."""


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked of the engine.

  Attributes:
    prompt: token ids.
    max_new_tokens: cap on the answer.
    temperature, top_k, top_p: see `Sampling`.
    seed: what is drawn depends on it alone.
    stop_ids: ids that end this answer, beside those of the engine.
    ignore_eos: those of the engine do not end it, for loads whose answers are
      to be of a given length.
    timeout_s: seconds from submission after which the request ends, with the
      tokens it has; None: never.
  """

  prompt: Sequence[int]
  max_new_tokens: int = 256
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  stop_ids: Sequence[int] = ()
  ignore_eos: bool = False
  timeout_s: float | None = None

  def check(self, target: Target, capacity: int, rows: int) -> None:
    """Refuses what could not be answered.

    Args:
      capacity: rows of the caches.
      rows: of a block.

    Raises:
      InputError: names the field, its value and what was expected.
    """
    if isinstance(self.prompt, str | bytes) or np.ndim(self.prompt) != 1:
      raise InputError(f'prompt is {self.prompt!r:.40}, expected token ids')
    if not len(self.prompt):
      raise InputError('prompt is empty')
    check_ids(target, 'prompt', self.prompt)
    check_ids(target, 'stop_ids', self.stop_ids)
    most = target.cfg.max_position
    new = whole('max_new_tokens', self.max_new_tokens, 1, most)
    check_context(target, None, len(self.prompt), new)
    need = len(self.prompt) + new + rows
    if need > capacity:
      raise InputError(
        f'prompt has {len(self.prompt)} tokens; with {new} new ones it needs '
        f'{need} rows, and capacity = {capacity}'
      )
    whole('seed', self.seed, 0, 2**32 - 1)
    check_sampling(self.temperature, self.top_k, self.top_p)
    if not isinstance(self.ignore_eos, bool):
      raise InputError(
        f'ignore_eos = {self.ignore_eos!r:.60}, expected True or False'
      )
    late = self.timeout_s
    number = isinstance(late, int | float) and not isinstance(late, bool)
    if late is not None and not (number and late > 0):
      raise InputError(f'timeout_s = {late!r}, expected a number above 0')


@dataclasses.dataclass(eq=False)
class Ticket:
  """A request on its way through the engine.

  Attributes:
    request: what was asked.
    on_tokens: called with the ticket and its new token ids (int32, maybe none
      at the end) whenever there are some, and when it ends.
    submitted: the engine's clock at submission.
    tokens: ids emitted so far, the stop token included.
    deliveries: (clock, tokens) of each delivery that had any.
    finish: None while it is on its way, then 'stop', 'length', 'cancelled',
      'timeout' or 'failed'.
    finished: the clock then.
    cancelled: what `finish` will be, once `cancel` was called.
    cached: prompt tokens that the prefix cache had.
    rounds, accepted_hist: as those of `Completion`.
    error: why it failed.
  """

  request: Request
  on_tokens: Callable[['Ticket', np.ndarray], None] | None
  submitted: float
  tokens: list[int] = dataclasses.field(default_factory=list)
  deliveries: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  finish: str | None = None
  finished: float | None = None
  cached: int = 0
  rounds: int = 0
  accepted_hist: np.ndarray | None = None
  error: Exception | None = None
  cancelled: str | None = None

  def cancel(self, finish: str = 'cancelled') -> None:
    """Ends the request before the engine's next round, from any thread.

    Args:
      finish: 'stop' where the caller saw the end of the answer.
    """
    self.cancelled = self.cancelled or finish

  def ending(self, now: float) -> str | None:
    """Why it has to end now, if it has to."""
    if self.cancelled is not None:
      return self.cancelled
    timeout = self.request.timeout_s
    if timeout is not None and now - self.submitted >= timeout:
      return 'timeout'
    return None

  def deliver(self, new: np.ndarray, now: float, finish: str | None) -> None:
    """Takes new tokens, and tells whoever waits for them."""
    self.tokens += new.tolist()
    if len(new):
      self.deliveries.append((now, len(new)))
    if finish is not None:
      self.finish, self.finished = finish, now
    if self.on_tokens is None or not (len(new) or finish):
      return
    try:
      self.on_tokens(self, new)
    except Exception as error:  # others must not suffer from it
      self.error, self.on_tokens = error, None
      self.cancel()
