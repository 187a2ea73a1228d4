"""Load and what is measured of it, on an engine whose times are known; and
rounds whose acceptance is given."""

import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode import forced, load
from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.ticket import Overloaded, Request, Ticket
from spinejax.drafters.base import (
  Drafter,
  DraftModel,
  Proposal,
  no_cache,
  skip_features,
)
from spinejax.drafters.loading import plain_model
from spinejax.drafters.plain import PlainConfig
from tests.decode import toy


class Clockwork:
  """In place of an engine: a turn takes a second, and gives each of `slots`
  requests two tokens, the first one in its first turn."""

  def __init__(self, slots, queue=99):
    self.now, self.slots, self.queue = 0.0, slots, queue
    self.tickets, self.most = [], 0

  def clock(self):
    return self.now

  def submit(self, request, on_tokens=None):
    if len(self.tickets) - self.slots >= self.queue:
      raise Overloaded
    self.tickets.append(Ticket(request, on_tokens, self.now))
    return self.tickets[-1]

  def step(self):
    self.now += 1
    self.most = max(self.most, len(self.tickets))
    for ticket in self.tickets[: self.slots]:
      told = len(ticket.tokens)
      left = ticket.request.max_new_tokens - told
      new = np.zeros(min(left, 2 if told else 1), int)
      done = left == len(new)
      if done:
        self.tickets.remove(ticket)
      ticket.deliver(new, self.now, 'length' if done else None)
    return bool(self.tickets)

  def run(self):
    while self.step():
      pass


def test_closed_loop():
  engine = Clockwork(slots=2)
  done = load.closed_loop(engine, [Request([1], 5)] * 6, 2)
  assert engine.most == 2
  assert [t.submitted for t in done.tickets] == [0, 0, 3, 3, 6, 6]
  assert (done.began, done.ended) == (1, 9)
  row = load.measured(done)
  assert row['emitted'] == 30 and row['requests'] == 6
  assert row['tokens_per_s'] == pytest.approx(28 / 8)
  assert row['request_tokens_per_s'] == pytest.approx(5 / 3)
  for q in (50, 95, 99):
    assert row[f'ttft_ms_p{q}'] == pytest.approx(1000)
    assert row[f'token_ms_p{q}'] == pytest.approx(500)


def test_a_closed_loop_counts_while_all_clients_are_busy():
  requests = [Request([1], n) for n in (1, 9, 3)]
  done = load.closed_loop(Clockwork(slots=2), requests, 2)
  assert (done.began, done.ended) == (1, 3)
  assert max(ticket.finished for ticket in done.tickets) == 5
  assert load.measured(done)['tokens_per_s'] == pytest.approx((4 + 3) / 2)


def test_a_closed_loop_that_is_never_full():
  requests = [Request([1], n) for n in (1, 1)]
  done = load.closed_loop(Clockwork(slots=1), requests, 2)
  assert (done.began, done.ended) == (0, 1)
  assert load.measured(done)['tokens_per_s'] == pytest.approx(1)


def test_a_closed_loop_of_one_answer_in_one_piece():
  """Which leaves no time after the first token, and is not no speed."""
  done = load.closed_loop(Clockwork(slots=1), [Request([1], 1)], 1)
  assert load.measured(done)['tokens_per_s'] == pytest.approx(1)


def test_a_closed_loop_that_cannot_ask_all(refused):
  """Or else it would tell of a smaller load as of the one asked for."""
  engine = Engine(
    toy.target(), plain_model(), Settings(slots=2, capacity=64, chunks=(8,))
  )
  good = Request([1], 2)
  for bad, message in (
    (Request([], 2), 'prompt is empty'),
    (Request([1], 99), 'prompt has 1 tokens; with 99 new ones it needs ...'),
  ):
    with refused(message):
      load.closed_loop(engine, [good, good, bad, good], 2)
  with pytest.raises(Overloaded):
    load.closed_loop(Clockwork(1, queue=2), [good] * 9, 4)
  with refused('concurrency = 0, expected 1..2147483647'):
    load.closed_loop(engine, [good], 0)
  with refused('requests is empty, expected at least one'):
    load.closed_loop(engine, [], 1)


def test_nobody_was_answered(refused):
  late = Ticket(Request([1], 2), None, 0.0, finish='timeout', finished=1.0)
  done = load.Load([late, late], [0.0, 0.0], 3, 0.0, 1.0)
  with refused(
    'none of 2 requests got a token, and 3 were refused: there is nothing to '
    'measure'
  ):
    load.measured(done)


def test_open_loop():
  """What comes during a turn waits for it, and that counts."""
  engine = Clockwork(slots=1, queue=2)

  def sleep(seconds):
    engine.now += seconds

  arrivals = [0.25, 0.5, 0.75, 0.8, 9.0]
  done = load.open_loop(engine, [Request([1], 3)] * 5, arrivals, sleep)
  # At 1.25 three are there, of which one finds the queue full.
  assert done.refused == 1
  assert done.asked == [0.25, 0.5, 0.75, 9.0]
  assert [t.finished for t in done.tickets] == [2.25, 4.25, 6.25, 11.0]
  firsts = [
    t.deliveries[0][0] - a
    for t, a in zip(done.tickets, done.asked, strict=True)
  ]
  assert firsts == [1.0, 2.75, 4.5, 1.0]
  row = load.measured(done)
  assert row['ttft_ms_p50'] == pytest.approx(1e3 * np.median(firsts))
  assert row['refused'] == 1 and row['seconds'] == 11.0


def test_poisson():
  arrivals = load.poisson(4000, 5.0, seed=3)
  gaps = np.diff(arrivals, prepend=0)
  assert gaps.min() > 0
  # Mean and spread of an exponential law, within four standard errors.
  assert gaps.mean() == pytest.approx(0.2, rel=4 / 4000**0.5)
  assert gaps.std() == pytest.approx(0.2, rel=0.1)
  assert arrivals == load.poisson(4000, 5.0, seed=3)


def test_first_token():
  ms, ticket = load.first_token_ms(Clockwork(slots=1), Request([1], 4))
  assert ms == 1000 and len(ticket.tokens) == 4


@pytest.mark.parametrize('mean', (1, 2.5, 4.82, 16))
def test_survival_of_a_mean(mean):
  survival = np.array(forced.survival_of_mean(mean, 15))
  assert 1 + survival.sum() == pytest.approx(mean)
  ratios = survival[1:] / np.maximum(survival[:-1], 1e-30)
  if mean > 1:
    np.testing.assert_allclose(ratios, survival[0])


@pytest.mark.parametrize('mean', (0.9, 16.1, float('nan')))
def test_no_such_mean(mean, refused):
  with refused(f'tokens_per_round = {mean}, expected 1..16 of 15 slots'):
    forced.survival_of_mean(mean, 15)


def guess(cfg, params, view, cache, history, anchor_B, keys_B, sampling):
  """Token 1 in every slot."""
  return Proposal.certain(jnp.ones((len(anchor_B), cfg.slots), jnp.int32))


GUESS = Drafter('guess', PlainConfig(slots=4), no_cache, skip_features, guess)


def test_forced_acceptance_has_its_distribution():
  survival = np.array([0.8, 0.5, 0.5, 0.1], np.float32)
  engine = Engine(
    toy.target(), DraftModel(GUESS),
    Settings(slots=8, capacity=256, readers=8, chunks=(16,), rounds=None),
    stop_ids=(), step=forced.step, extra=survival,
  )  # fmt: skip
  tickets = [
    engine.submit(Request(prompt, 200, seed=i))
    for i, prompt in enumerate(toy.prompts(*range(1, 9)))
  ]
  engine.run()
  assert all(len(ticket.tokens) == 200 for ticket in tickets)
  hist = sum(ticket.accepted_hist for ticket in tickets)
  rounds = hist.sum()
  found = hist[::-1].cumsum()[::-1][1:] / rounds
  spread = (survival * (1 - survival) / rounds) ** 0.5
  # The cap cuts the last round of each.
  assert (abs(found - survival) < 4 * spread + 8 / rounds).all()
  # It depends on a request's seed and place alone.
  again = engine.submit(tickets[3].request)
  engine.run()
  assert again.accepted_hist.tolist() == tickets[3].accepted_hist.tolist()
