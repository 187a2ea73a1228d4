"""The engine's state and times for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
  CounterMetricFamily,
  GaugeMetricFamily,
  Metric,
)

from spinejax.decode.engine import Engine
from spinejax.decode.ticket import Ticket

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
  """What `/metrics` shows of one engine."""

  def __init__(self, engine: Engine):
    self._engine = engine
    self._registry = CollectorRegistry()
    self._registry.register(self)
    self._first, self._whole = (
      Histogram(f'spinejax_{name}_seconds', text, buckets=_SECONDS,
                registry=self._registry)
      for name, text in (
        ('first_token', 'From submission to the first token'),
        ('request', 'From submission to the last token'),
      )
    )  # fmt: skip

  def observe(self, ticket: Ticket) -> None:
    """Counts the times of a request that has ended."""
    if ticket.deliveries:
      self._first.observe(ticket.deliveries[0][0] - ticket.submitted)
      self._whole.observe(ticket.finished - ticket.submitted)

  def collect(self) -> Iterator[Metric]:
    """What the engine counts itself, as Prometheus asks for it."""
    engine, counters = self._engine, self._engine.counters
    for name, value, text in (
      ('running', engine.running, 'Requests in slots'),
      ('waiting', engine.waiting, 'Requests not in slots yet'),
    ):
      yield GaugeMetricFamily(f'spinejax_{name}_requests', text, value)
    ended = CounterMetricFamily(
      'spinejax_finished_requests', 'Requests by why they ended',
      labels=('reason',),
    )  # fmt: skip
    for reason, count in dict(counters.finished).items():
      ended.add_metric((reason,), count)
    yield ended
    ran = CounterMetricFamily(
      'spinejax_rounds', 'Rounds by what they verified', labels=('kind',)
    )
    for kind, count in dict(counters.rounds).items():
      ran.add_metric((kind,), count)
    yield ran
    for name, value, text in (
      ('refused_requests', counters.refused, 'Requests that found it full'),
      ('prompt_tokens', counters.prompt_tokens, 'Prompt tokens'),
      ('cached_tokens', counters.cached_tokens, 'Of them, from the cache'),
      ('emitted_tokens', counters.emitted_tokens, 'Tokens of answers'),
    ):
      yield CounterMetricFamily(f'spinejax_{name}', text, value)

  def text(self) -> bytes:
    """The exposition format."""
    return generate_latest(self._registry)
