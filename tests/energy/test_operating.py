"""Tokens composed of rounds, the law on rounds it has not seen, regions."""

import dataclasses

import numpy as np
import pytest

from experiments.random_weights import drafter_shapes
from experiments.speculation_plan import acceptances, shape_of
from spinejax.energy import operating
from spinejax.energy.hardware import chip
from spinejax.energy.modelled import round_seconds
from spinejax.energy.operating import Acceptance
from spinejax.energy.speculation import Rounds
from tests.energy import rounds as made_up

FORCED = Acceptance('given', True, '', {'': [0.8, 0.5, 0.2] + [0.0] * 12})
TEXT = Acceptance('text', False, 'qwen3-8b', {'dspine': [0.9] * 15})


def round_of(drafter, rows, joules, time_ms, **more):
  return dict(
    kind='round', target='qwen3-8b', drafter=drafter, rows=rows, batch=4,
    context=100, joules=joules, time_ms=time_ms,
  ) | more  # fmt: skip


def test_tokens_by_hand():
  rows = [
    round_of('plain', 1, 10.0, 20.0), round_of('dspine', 4, 19.0, 51.0),
    round_of('dspine', 4, 21.0, 49.0), round_of('dspine', 8, 30.0, 40.0),
    round_of('dspine', 4, 9.0, 9.0, batch=8),  # has no plain steps beside it
    dict(kind='idle', target='qwen3-8b', watts=100.0),
    dict(kind='idle', target='other', watts=900.0), dict(kind='baseline'),
  ]  # fmt: skip
  merged = operating.merged(rows)
  assert [row['repeats'] for row in merged] == [1, 2, 1, 1]
  assert merged[1]['joules'] == 20 and merged[1]['time_ms'] == 50
  assert merged[1]['joules_net'] == pytest.approx(20 - 0.05 * 100)
  assert operating.apart(rows) == [pytest.approx(2 / 20)]

  plain, *cells = operating.cells(merged, [FORCED, TEXT])
  assert plain['joules_per_token'] == 2.5 and plain['time_ms'] == 20
  assert plain['tokens_per_s'] == 200 and plain['concurrency'] == 4
  assert plain['joules_per_token_net'] == pytest.approx(2.0)
  assert [(c['rows'], c['dataset']) for c in cells] == [
    (4, 'given'), (4, 'text'), (8, 'given'), (8, 'text')
  ]  # fmt: skip
  four = cells[0]
  assert four['tokens_per_round'] == 2.5
  assert [cell['acceptance_is'] for cell in cells[:2]] == [
    'synthetic', 'measured'
  ]  # fmt: skip
  assert four['joules_per_token'] == pytest.approx(20 / 4 / 2.5)
  assert four['time_ms'] == 20 and four['tokens_per_s'] == 200
  assert four['joules_vs_plain'] == pytest.approx(0.8)
  assert four['speedup_vs_plain'] == pytest.approx(1)
  # 20 J and 50 ms for 2.5 tokens; 30 J and 40 ms for 2.5; then for more.
  assert [cell['region'] for cell in cells] == [
    'energy only', 'both', 'time only', 'both'
  ]  # fmt: skip
  assert operating.region(-0.1, -0.1) == 'neither'


def test_whose_acceptance_it_is():
  assert FORCED.tokens('any', 'dflash', 3) == pytest.approx(2.3)
  assert TEXT.tokens('qwen3-8b', 'dspine', 16) == pytest.approx(1 + 0.9 * 15)
  assert TEXT.tokens('smollm2-135m', 'dspine', 16) is None
  assert TEXT.tokens('qwen3-8b', 'dflash', 16) is None
  assert TEXT.tokens('qwen3-8b', 'dspine', 17) is None  # not known so far


def test_rounds_that_were_left_out(refused):
  """A law that generated them predicts them as well as their noise allows."""
  rounds = operating.merged(made_up.rows(noise=0.02))
  acceptances = [FORCED, TEXT]
  for value, (coef, hidden) in (
    ('joules', made_up.JOULES), ('time_ms', made_up.TIME_MS),
  ):  # fmt: skip
    truth = made_up.law(coef, hidden).predict(Rounds.from_rows(rounds))
    law = operating.law_of(rounds, value)
    found = law.predict(Rounds.from_rows(rounds))
    np.testing.assert_allclose(found, truth, rtol=0.05)
    for by in ('place', 'batch', 'context'):
      guess = operating.held_out(rounds, value, by)
      scores = operating.scores(rounds, guess, value, acceptances)
      assert 0.5 < scores['mape'] < 4 and scores['cells'] == len(rounds)
      assert scores['sign_right'] > 0.95 and scores['sign_cells'] > 50
      assert not np.array_equal(guess, found)
  # One that is wrong at a place is found out.
  wrong = operating.scores(rounds, 1.2 * truth, 'time_ms', acceptances)
  assert wrong['mape'] == pytest.approx(20, abs=3)
  bent = truth * np.where([r['drafter'] == 'plain' for r in rounds], 0.4, 1)
  assert operating.scores(rounds, bent, 'time_ms', [TEXT])['sign_right'] < 0.9
  with refused('rounds of a, b, expected those of one'):
    operating.law_of([dict(target='a'), dict(target='b')])


@pytest.mark.parametrize(
  'source, rank, message, most',
  (('qwen3-8b', 1024, 512, 2**19), ('smollm2-135m', 384, 256, 2**21)),
)
def test_a_roofline_is_met_well_enough_for_a_map(source, rank, message, most):
  """Rounds that are no law's, at the places that are measured: what takes
  longer, bytes or products."""
  shape = shape_of(
    source, block=16, rank=rank, message=message, layers=5, taps=5
  )
  drafts = {('plain', 1): None}
  for rows in (8, 16):
    draft = dataclasses.replace(shape.draft, block=rows)
    drafts['dspine', rows] = drafter_shapes('dspine', draft)
  rounds = [
    dict(target=source, drafter=name, rows=rows, batch=batch, context=context,
         time_ms=1e3 * round_seconds(chip('h200'), shape.cfg, draft, batch,
                                     context))
    for batch in made_up.BATCHES
    for context in made_up.CONTEXTS
    if batch * context <= most
    for (name, rows), draft in drafts.items()
  ]  # fmt: skip
  guess = operating.held_out(rounds, 'time_ms')
  given = acceptances((), (2.0, 3.0, 4.0, 6.0), 16)
  scores = operating.scores(rounds, guess, 'time_ms', given)
  assert scores['mape'] < 15 and scores['sign_right'] >= 0.95
