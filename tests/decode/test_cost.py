"""The cost of a round by the rows of its block, and what follows from it."""

import dataclasses

import pytest

from spinejax.decode import cost
from spinejax.decode.timing import Bench
from spinejax.drafters.loading import ngram_model, plain_model
from tests.compilations import COMPILATIONS
from tests.decode import toy

SURVIVAL = [0.5, 0.25, 0.125]
CAPACITY = 128


def with_causal(draft: cost.DraftModel, causal: bool) -> cost.DraftModel:
  """The same drafter, causal inside its block or not."""
  cfg = dataclasses.replace(draft.drafter.cfg, causal=causal)
  return dataclasses.replace(
    draft, drafter=dataclasses.replace(draft.drafter, cfg=cfg)
  )


def test_expected_tokens(refused):
  found = [cost.expected_tokens(SURVIVAL, width) for width in (1, 2, 3, 4)]
  assert found == [1.0, 1.5, 1.75, 1.875]
  for width in (0, 5):
    with refused(
      f'width = {width}, expected 1..4: acceptance is known for 3 proposals'
    ):
      cost.expected_tokens(SURVIVAL, width)


@pytest.mark.parametrize(
  'round_ms, best',
  (
    ({1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0}, 4),  # rows that cost nothing
    ({1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}, 2),  # of each its own time
    ({1: 10.0, 2: 14.0, 3: 15.0, 4: 17.0}, 3),
    ({1: 10.0, 4: 187.5, 2: 150.0, 3: 175.0}, 2),  # equals
    ({1: 1.0, 3: 60.0, 4: 60.0}, 4),  # though plain decoding is faster
  ),
)
def test_best_width(round_ms, best):
  assert cost.best_width(cost.CostTable(1, round_ms), SURVIVAL) == best


def test_tokens_per_s():
  table = cost.CostTable(8, {1: 4.0, 3: 7.0})
  assert table.tokens_per_s(SURVIVAL) == {1: 2000.0, 3: 2000.0}


def test_nothing_to_choose_from(refused):
  with refused('widths is empty, expected at least one from 2 on'):
    cost.best_width(cost.CostTable(1, {1: 4.0}), SURVIVAL)


@pytest.mark.parametrize('model', (toy.dspine_model, lambda: ngram_model(4)))
def test_a_narrower_block_is_of_the_same_drafter(model, refused):
  wide = model()
  narrow = cost.with_width(wide, 3)
  assert (wide.drafter.slots, narrow.drafter.slots) == (4, 2)
  assert cost.with_width(narrow, 3).drafter == narrow.drafter
  for width in (1, 6):
    with refused(f'width = {width}, expected 2..5'):
      cost.with_width(wide, width)


def test_widths_worth_trying():
  assert cost.widths_of(toy.dspine_model()) == [2, 4, 5]
  assert cost.widths_of(ngram_model(15)) == [2, 4, 6, 8, 12, 16]


def test_slots_that_look_ahead_are_refused(refused):
  for draft in (
    toy.dflash_model(),
    with_causal(toy.dspine_model(), False),
  ):
    with refused(
      f'drafter {draft.drafter.name} is not causal inside its block: at '
      'another width than 5 it proposes other tokens'
    ):
      cost.probe(toy.target(), draft, 1, CAPACITY, widths=(4,))
    assert cost.widths_of(draft) == [5]
    assert cost.with_width(draft, 5) is draft


def test_probe():
  of, draft = toy.target(), toy.dspine_model()
  table = cost.probe(of, draft, 2, CAPACITY, widths=(2, 4))
  assert table.batch == 2
  assert list(table.round_ms) == [1, 2, 4]
  assert all(ms > 0 for ms in table.round_ms.values())

  def compiles(width: int) -> int:
    before = len(COMPILATIONS)
    narrow = cost.with_width(draft, width)
    toy.decode(of, narrow, toy.prompts(1, 1), capacity=CAPACITY)
    return len(COMPILATIONS) - before

  toy.decode(of, plain_model(), toy.prompts(1, 1), capacity=CAPACITY)
  # The rounds of a width that was probed are compiled already.
  assert compiles(4) == compiles(3) - 1


def test_probe_refuses(refused):
  with refused(
    'capacity = 16: 4 rounds of at most 5 rows at a context of 8 need 17'
  ):
    cost.probe(toy.target(), toy.dspine_model(), 1, 16)
  other = dataclasses.replace(toy.dspine_model(), head_hash='another')
  with refused('drafter dspine was trained for another target: ...'):
    cost.probe(toy.target(), other, 1, CAPACITY)


@pytest.mark.parametrize(
  'field, value, least', (('batch', 0, 1), ('context', 1, 2), ('rounds', 0, 1))
)
def test_a_bench_refuses(field, value, least, refused):
  of = toy.target()
  sizes = dict(batch=1, context=9, rounds=2, capacity=32) | {field: value}
  with refused(f'{field} = {value}, expected at least {least}'):
    Bench(of.cfg, of.params, **sizes)


def test_survival():
  of, prompts = toy.target(), toy.prompts(9)
  known = toy.answers(of, plain_model(), prompts)
  # Both of a batch are the one prompt there is.
  right = toy.oracle_model(
    prompts * 2, known * 2, wrong_every=1000, gap_every=1000
  )
  found = cost.measure_survival(
    of, right, prompts, 2, capacity=256, max_new_tokens=20, stop_ids=toy.STOPS
  )
  assert found == [1.0] * 4


def test_width_counts_rows_also_where_the_anchor_proposes():
  draft = with_causal(toy.other_model('dspark-vanilla'), True)
  assert cost.widths_of(draft) == [2, 4, 5]
  narrow = cost.with_width(draft, 3).drafter
  assert (narrow.slots, narrow.cfg.block) == (2, 2)


def test_probe_budgets(refused):
  of, draft = toy.target(), ngram_model(4)
  assert cost.budgets_of(draft, 2) == [5, 8, 10]
  assert cost.budgets_of(ngram_model(1), 3) == [4, 6]
  table = cost.probe_budgets(of, draft, 2, CAPACITY, budgets=[4])
  assert (table.batch, table.unit, list(table.drafted)) == (2, 'ms', [4])
  assert 0 < table.plain and 0 < table.drafted[4]
  with refused('budget = 11, expected 2..10: 2 requests of 5 rows at most'):
    cost.probe_budgets(of, draft, 2, CAPACITY, budgets=[11])
