"""Drafters side by side: what runs in which order, and the rows made of it."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.decode import compare
from spinejax.decode.compare import SAME_ROWS, Comparison, Run, Settings
from spinejax.decode.generate import Completion, Generation
from spinejax.drafters.loading import ngram_model, plain_model
from spinejax.report import results
from spinejax.target import memory
from spinejax.verify.audit import Audit
from tests.decode import toy

PROMPTS = toy.prompts(5, 9, 3, 20, 7)
DRAFTERS = {
  'plain': plain_model(),
  SAME_ROWS: plain_model(toy.SLOTS),
  'ngram': ngram_model(toy.SLOTS),
}
# Row keys that all experiments share.
SHARED = {
  'target', 'drafter', 'dataset', 'temperature', 'dtype', 'batch', 'total',
  'tokens_per_round', 'tokens_per_round_low', 'tokens_per_round_high',
  'tokens_per_s', 'seed',
}  # fmt: skip
EXACTNESS = {f.name for f in dataclasses.fields(Audit)}


@pytest.fixture(scope='module')
def real():
  """Rows of a real greedy run, and the run."""
  settings = Settings(max_new_tokens=toy.NEW, batch=2)
  done = compare.run(toy.target(), DRAFTERS, PROMPTS, settings)
  return compare.rows(toy.target(), done, settings, 'random'), done


def test_a_real_run_is_exact(real):
  table, done = real
  assert [row['drafter'] for row in table] == list(DRAFTERS)
  plain, same, ngram = table
  for row in table:
    assert row['total'] == len(PROMPTS)
  for row in (plain, ngram):
    assert row['exact'] + row['ties'] == row['total'] and row['wrong'] == 0
  # That that has the row count of the reference, to the last token.
  assert ngram['exact'] == len(PROMPTS)
  assert 'exact' not in same  # it is the reference
  assert plain['tokens_per_round'] == 1 <= ngram['tokens_per_round']
  assert all(row['tokens_per_s'] > 0 for row in table)
  assert done.warmup_s > 0
  for one in done.runs.values():
    assert [c.prompt_tokens for c in one.completions] == [5, 9, 3, 20, 7]
    assert len(one.seconds) == 3 and min(one.seconds) > 0


def test_rows_have_the_shared_keys_and_fit_in_a_result(real):
  table, _ = real
  plain, same, ngram = table
  for row in table:
    assert set(row) >= SHARED
    assert row is same or set(row) >= EXACTNESS
    assert sum(row['emitted_by_prompt']) >= sum(row['rounds_by_prompt']) > 0
    assert json.loads(json.dumps(row)) == row
  faster = {'speedup_vs_plain', 'speedup_low', 'speedup_high', 'speedup_total'}
  assert not set(plain) & faster
  for row in (same, ngram):
    assert set(row) >= faster
    assert 0 < row['speedup_low'] <= row['speedup_vs_plain']
    assert row['speedup_vs_plain'] <= row['speedup_high']
    assert row['speedup_total'] > 0
  assert 'acceptance_by_position' not in plain | same
  accepted = ngram['acceptance_by_position']
  assert len(accepted) == toy.SLOTS and accepted == sorted(accepted)[::-1]
  assert (ngram['target'], ngram['dataset']) == ('toy-qwen3', 'random')
  assert (ngram['dtype'], ngram['batch']) == ('float32', 2)
  built = results.build(
    'decode', 'measured', table, config={}, started=results.now()
  )
  assert built['metrics'] == table


@pytest.fixture
def calls(monkeypatch):
  """Calls of `generate`, which only tells who was asked for what."""
  made = []

  def generate(target, draft, prompts, **settings):
    made.append((draft.drafter.slots, [len(p) for p in prompts], settings))
    answers = [
      Completion(str(p), np.array(p), len(p), 'length', 1, np.array([1, 0]))
      for p in prompts
    ]
    return Generation(answers, prefill_s=0.25, decode_s=len(made))

  monkeypatch.setattr(compare, 'generate', generate)
  return made


def test_drafters_take_turns(calls):
  told = []
  settings = Settings(
    max_new_tokens=30, temperature=0.5, top_k=3, top_p=0.9, seed=100, batch=2
  )
  drafters = {'plain': plain_model(), 'ngram': ngram_model(9)}
  done = compare.run(
    toy.target(), drafters, PROMPTS, settings, lambda *x: told.append(x)
  )
  # A short decoding each to warm up, then batch by batch; the last one is
  # filled with the first prompt.
  assert [(slots, sizes) for slots, sizes, _ in calls] == [
    (0, [5, 9]), (9, [5, 9]),
    (0, [5, 9]), (9, [5, 9]),
    (0, [3, 20]), (9, [3, 20]),
    (0, [7, 5]), (9, [7, 5]),
  ]  # fmt: skip
  given = [settings for _, _, settings in calls]
  assert [x['max_new_tokens'] for x in given] == [2, 2] + [30] * 6
  assert [x['seed'] for x in given[2:]] == [100, 100, 102, 102, 104, 104]
  for x in given:
    assert (x['temperature'], x['top_k'], x['top_p']) == (0.5, 3, 0.9)
    # 20 + 30 tokens and a block of 10.
    assert x['capacity'] == done.capacity == 128
  # What filled the last batch is cut off again.
  for one in done.runs.values():
    assert [c.tokens.tolist() for c in one.completions] == PROMPTS
  assert done.prompts == PROMPTS
  assert done.runs['plain'].seconds == [3.25, 5.25, 7.25]
  assert done.runs['ngram'].seconds == [4.25, 6.25, 8.25]
  assert [name for name, _ in told] == ['plain', 'ngram'] * 3
  np.testing.assert_allclose([x for _, x in told], np.arange(1, 7) / 6)


def test_a_batch_larger_than_the_prompts(calls):
  settings = Settings(max_new_tokens=8, batch=64)
  done = compare.run(
    toy.target(), {'plain': plain_model()}, PROMPTS[:3], settings
  )
  assert [sizes for _, sizes, _ in calls] == [[5, 9, 3]] * 2
  assert len(done.runs['plain'].completions) == 3


def answer(*tokens, hist=(1,)) -> Completion:
  """An answer; `hist` counts its rounds by accepted proposals."""
  rounds = sum(hist)
  return Completion('', np.array(tokens), 4, 'length', rounds, np.array(hist))


def made_up(**runs) -> Comparison:
  return Comparison(
    {name.replace('_', '-'): one for name, one in runs.items()},
    [[1, 2, 3, 4]] * 3,
    128,
    1.0,
  )


TEXTS = ((1, 2, 3, 4), (5, 6, 7, 8), (2,) * 64)
PLAIN = Run([answer(*t, hist=(len(t),)) for t in TEXTS], [2.0, 4.0, 2.0])
DRAFTED = Run(
  [
    answer(*TEXTS[0], hist=(0, 2, 0)),  # 2 rounds
    answer(*TEXTS[1], hist=(1, 0, 1)),  # 2 rounds
    answer(*TEXTS[2], hist=(0, 2, 20)),  # 22 rounds, a loop
  ],
  [1.0, 1.0, 1.0],
)


def test_rows_of_known_counts_and_times():
  settings = Settings(temperature=0.7, seed=3, batch=8)
  done = made_up(plain=PLAIN, dspine=DRAFTED)
  plain, row = compare.rows(toy.target(), done, settings, 'known')
  assert plain['tokens_per_round'] == 1
  assert plain['tokens_per_s'] == 72 / 8
  assert row['tokens_per_s'] == 72 / 3
  assert row['tokens_per_round'] == pytest.approx(72 / 26)
  low, high = row['tokens_per_round_low'], row['tokens_per_round_high']
  assert 2 <= low < row['tokens_per_round'] < high <= 64 / 22
  assert row['repetitive'] == 1
  assert row['tokens_per_round_nonrepetitive'] == 8 / 4
  assert row['speedup_vs_plain'] == 2 and row['speedup_total'] == 8 / 3
  # Of 26 rounds 25 accepted the first proposal and 21 the second.
  np.testing.assert_allclose(row['acceptance_by_position'], [25 / 26, 21 / 26])
  assert (row['batch'], row['temperature'], row['seed']) == (3, 0.7, 3)
  # Sampled answers have no one right text.
  for x in (plain, row):
    assert not set(x) & EXACTNESS


def test_nothing_but_loops():
  loop = answer(*TEXTS[2], hist=(64,))
  done = made_up(plain=Run([loop] * 3, [1.0] * 3))
  settings = Settings(temperature=1.0)
  (row,) = compare.rows(toy.target(), done, settings, 'loops')
  assert row['repetitive'] == 3
  assert 'tokens_per_round_nonrepetitive' not in row
  json.dumps(row)


@pytest.mark.parametrize('same_rows', (True, False))
def test_the_reference(monkeypatch, same_rows):
  """Plain decoding of as many rows, if it was run; else plain decoding."""
  seen = []

  def audit(target, prompts, reference, emitted, capacity):
    assert (prompts, capacity) == ([[1, 2, 3, 4]] * 3, 128)
    seen.append(([list(a) for a in reference], [list(b) for b in emitted]))
    return Audit(2, 1, 0, 4, 1e-4, 1)

  monkeypatch.setattr(compare.audit, 'audit', audit)
  other = Run([answer(9, 9, hist=(2, 0, 0))] * 3, [1.0] * 3)
  runs = {'plain': PLAIN, 'dspine': DRAFTED}
  if same_rows:
    runs = {'plain': PLAIN, SAME_ROWS: other, 'dspine': DRAFTED}
  done = Comparison(runs, [[1, 2, 3, 4]] * 3, 128, 1.0)
  table = compare.rows(toy.target(), done, Settings(), 'made up')
  reference = other if same_rows else PLAIN
  assert seen == [
    ([list(c.tokens) for c in reference.completions],
     [list(c.tokens) for c in one.completions])
    for one in runs.values() if one is not reference
  ]  # fmt: skip
  for row, one in zip(table, runs.values(), strict=True):
    if one is reference:
      assert 'exact' not in row
      continue
    assert (row['exact'], row['ties'], row['wrong']) == (2, 1, 0)
    assert (row['tie_tokens'], row['worst_gap']) == (4, 1e-4)


def test_curves():
  def row(drafter, dataset, accepted):
    return dict(
      drafter=drafter, dataset=dataset, acceptance_by_position=accepted
    )

  one = [dict(drafter='plain', dataset='a'), row('ngram', 'a', [0.5, 0.25])]
  found = compare.curves(one)
  assert {k: list(v) for k, v in found.items()} == {'ngram': [0.5, 0.25]}
  # The same drafter on another set does not take the place of the first.
  found = compare.curves([*one, row('ngram', 'b', [1.0, 0.5])])
  assert {k: list(v) for k, v in found.items()} == {
    'ngram, a': [0.5, 0.25],
    'ngram, b': [1.0, 0.5],
  }


def last_row(**changes):
  row = dict(drafter='dspine', dataset='a', tokens_per_round=3.456, total=5)
  return row | changes


@pytest.mark.parametrize(
  'rows, line',
  (
    ([last_row()], 'dspine: 3.46 (a) tokens a round'),
    (
      [last_row(exact=5, ties=0, wrong=0)],
      'dspine: 3.46 (a) tokens a round; exact 5 = total 5: the '
      'very tokens of plain decoding',
    ),
    (
      [
        last_row(exact=5, ties=0, wrong=0),
        last_row(exact=3, ties=2, wrong=0, dataset='b', tokens_per_round=2),
      ],
      'dspine: 3.46 (a) and 2.00 (b) tokens a round; exact 8 of 10, 2 part at '
      'a near-tie of the target',
    ),
    (
      [last_row(exact=3, ties=1, wrong=1)],
      'dspine: 3.46 (a) tokens a round; exact 3 of 5, 1 part at a near-tie of '
      'the target, 1 WRONG',
    ),
  ),
)
def test_summary(rows, line):
  first = dict(drafter='plain', dataset='a', tokens_per_round=1, total=5)
  assert compare.summary([first, *rows]) == line


@pytest.mark.parametrize(
  'change, message',
  (
    (dict(batch=0), 'batch = 0, expected at least 1'),
    (dict(max_new_tokens=0), 'max_new_tokens = 0, expected at least 1'),
    (dict(seed=-1), 'seed = -1, expected 0..2147483647'),
    (
      dict(temperature=-1.0),
      'temperature = -1.0, expected 0 (greedy) or 0.0001..10000',
    ),
    (
      dict(top_k=-1),
      'top_k = -1, expected a whole number, at least 0 (0 keeps all)',
    ),
    (dict(top_p=0.0), 'top_p = 0.0, expected above 0 and at most 1'),
  ),
)
def test_settings_out_of_range(change, message, refused):
  with refused(message):
    Settings(**change)


def test_refused_before_anything_is_decoded(calls, refused, monkeypatch):
  target, drafters = toy.target(), {'plain': plain_model()}
  settings = Settings(max_new_tokens=500)
  # Only the last prompt is too long, and by one token.
  prompts = toy.prompts(3, 12, 13)
  with refused(
    'prompt 2 has 13 tokens; with 500 new ones that exceeds the context of '
    '512 that toy-qwen3 was trained for'
  ):
    compare.run(target, drafters, prompts, settings)
  with refused('prompt 1 is empty'):
    compare.run(target, drafters, [[1], []], Settings())
  cfg = dataclasses.replace(toy.dspine_model().drafter.cfg, vocab=62)
  drafter = dataclasses.replace(toy.dspine_model().drafter, cfg=cfg)
  wrong = dataclasses.replace(toy.dspine_model(), drafter=drafter)
  with refused('drafter dspine was made for a target of vocab 62; ...'):
    compare.run(target, drafters | {'dspine': wrong}, PROMPTS, Settings())
  half = jax.tree.map(lambda x: x.astype(jnp.float16), target.params)
  other = dataclasses.replace(target, params=half)
  with refused('dtype = float16, expected one of float32, bfloat16: ...'):
    compare.run(other, drafters, PROMPTS, Settings())
  monkeypatch.setattr(memory, 'available_bytes', lambda: 1000)
  with refused('batch 1 at capacity 384 needs ...'):
    compare.run(target, drafters, PROMPTS, Settings())
  assert not calls
