"""SIMPLE against the published example, and its terms by hand."""

import dataclasses

import numpy as np
import pytest

from spinejax.energy.cells import architecture, cells_of
from spinejax.energy.simple import (
  COLUMNS,
  HEADINGS,
  VARIANTS,
  Simple,
  cached_prefix,
  calibrate,
  cheapest_output,
)
from spinejax.target.presets import preset
from tests.energy.cells import grid

LLAMA = preset('llama-3.1-8b')
# Llama 3.1 8B, 68K tokens in and 247 out; the same with 63K of them cached;
# 5K in. The published joules, and the share of key/value reads of the second.
LONG, CACHED, SHORT = (68000, 0), (68000, 63000), (5000, 0)
JOULES = {LONG: 1787.7, CACHED: 668.7, SHORT: 138.1}
KV_SHARE = 0.86


def cells(*requests, output=247, cfg=LLAMA):
  shape = architecture(cfg) | dict(model='llama', output=output)
  return cells_of([shape | dict(input=i, cached=c) for i, c in requests])


def from_two(one, other, variant, **settings):
  """A law from two of the joules and the share."""
  known = [JOULES[x] if x in (one, other) else np.nan for x in JOULES]
  share = [np.nan, KV_SHARE, np.nan]
  return calibrate(cells(*JOULES), known, share, variant, **settings)


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('third', (SHORT, CACHED), ids=('short', 'cached'))
def test_two_of_the_example_and_the_share_give_the_third(variant, third):
  one, other = (request for request in JOULES if request != third)
  law = from_two(one, other, variant)
  (found,) = law.predict(cells(third))
  assert found == pytest.approx(JOULES[third], rel=0.01)


def test_the_two_short_prefills_leave_the_third_open():
  # Both read 5K tokens: what a prompt token costs is not in them.
  with pytest.raises(ValueError, match='determine 2 of 3 coefficients'):
    from_two(CACHED, SHORT, 'kv_split')


@pytest.mark.parametrize(
  'split, next_token, share',
  ((0, 0.02907, 0.856), (1, 0.02486, 0.858), (2, 0.02064, 0.860)),
)
def test_the_example_bounds_the_next_token(split, next_token, share):
  # All three joules and no share: keys of the prompt only, with half of the
  # answer, with all of it.
  law = calibrate(
    cells(*JOULES), list(JOULES.values()), [np.nan] * 3, split=split
  )
  np.testing.assert_allclose(
    law.predict(cells(*JOULES)), list(JOULES.values()), rtol=1e-9
  )
  prefill, reads, _, per_token = law.coef_
  L, D, R = LLAMA.layers, LLAMA.width, 8 / 32
  assert prefill * L * D**2 == pytest.approx(0.017762, rel=1e-4)
  assert reads * R * L * D == pytest.approx(3.41e-5, rel=4e-3)
  assert per_token * L * D**2 == pytest.approx(next_token, rel=1e-3)
  effect = cached_prefix(law, cells(LONG), 63000)
  assert effect['joules_cached'] == pytest.approx(668.7)
  assert effect['prefill_removed'] == pytest.approx(63 / 68)
  assert effect['kv_share'] == pytest.approx(share, abs=6e-4)


def test_prefill_attention_contradicts_the_example():
  # With J/FLOP constant, attention over a 5K suffix behind 63K cached tokens
  # costs 2.5 times its products with weights: the published law has none.
  law = from_two(LONG, SHORT, 'physical')
  products = 6.98e9  # weights of the blocks
  law.coef_[1] = law.coef_[0] * LLAMA.layers * LLAMA.width**2 / products
  # A causal prompt meets half of its keys: 4 L D x I^2 / 2 flops against 2 N I.
  suffix, prompt = (law.columns(cells(x)) for x in (CACHED, LONG))
  (attention,), (linear,) = (suffix * law.coef_)[:, [1, 0]].T
  assert attention / linear == pytest.approx(2.5, rel=0.03)
  (attention,), (linear,) = (prompt * law.coef_)[:, [1, 0]].T
  assert attention / linear == pytest.approx(1.28, rel=0.02)
  (found,) = law.predict(cells(CACHED))
  assert found > 1.2 * JOULES[CACHED]


def test_columns_by_hand():
  table = cells((100, 40), output=10)
  L, D, G, C, V = 32, 4096, 8, 128, 128256
  by_hand = {
    'L D^2 I': L * D**2 * 60,
    'L D I': L * D * 60,
    'L D I^2': L * D * (100**2 - 40**2),
    'R L D I O': L * D * 1000 / 4,
    'R L D O^2/2': L * D * 50 / 4,
    'G C L I O': G * C * L * 1000,
    'G C L O^2/2': G * C * L * 50,
    'L D^2 O': L * D**2 * 10,
    'L D O': L * D * 10,
    'D V O': D * V * 10,
    'O': 10,
    '1': 1,
  }
  assert by_hand.keys() == COLUMNS.keys()
  for name, value in by_hand.items():
    assert COLUMNS[name](table) == pytest.approx([value]), name


@pytest.mark.parametrize('variant', VARIANTS)
def test_headings_add_up(variant):
  law, table = Simple(variant), grid(('qwen3-8b', 'smollm2-1.7b'))
  law.coef_ = np.arange(1.0, 1 + len(law.terms)) * 1e-9
  parts = law.decompose(table)
  assert set(parts) <= set(HEADINGS)
  assert set(parts) >= set(HEADINGS[:3])
  np.testing.assert_allclose(sum(parts.values()), law.predict(table))


def test_the_default_is_the_four_coefficients_of_the_paper():
  law = Simple()
  assert law.names == ['L D^2 I', 'R L D I O', 'R L D O^2/2', 'L D^2 O']
  assert law.weights == 'relative'
  # No vocabulary, feed-forward width or number of parameters.
  bare = [dict(model='a', input=9, output=9, layers=2, width=8, heads=2,
               kv_heads=1)]  # fmt: skip
  assert law.columns(cells_of(bare)).shape == (1, 4)


def test_cheapest_output():
  law = calibrate(cells(*JOULES), list(JOULES.values()), [np.nan] * 3)
  (best,) = cheapest_output(law, cells((64, 0)))
  assert best == pytest.approx(258, abs=0.5)
  lengths = np.arange(1, 2000)
  table = cells(*[(64, 0)] * len(lengths))
  table = dataclasses.replace(table, output_N=lengths.astype(float))
  assert lengths[np.argmin(law.predict(table) / lengths)] == round(best)
  law.coef_ = law.coef_ * [1, 1, 0, 1]  # no key of its own
  assert cheapest_output(law, cells((64, 0))) == [np.inf]


def test_bad_input(refused):
  with refused("variant = 'kv', expected one of kv_split, single_kv, ..."):
    Simple('kv')
  with refused("weights = 'log', expected relative or absolute"):
    Simple(weights='log')
  with refused('the law has no coefficients: call fit first'):
    Simple().predict(cells(LONG))
  bare = dict(model='a', input=9, output=9, layers=2, width=8, heads=2,
              kv_heads=1)  # fmt: skip
  with refused('term D V O needs the column vocab'):
    Simple('physical').columns(cells_of([bare]))
  law = Simple()
  law.coef_ = np.ones(4)
  with refused('cached = 68000, expected 1..67999: the last prompt token ...'):
    cached_prefix(law, cells(LONG), 68000)
  with refused('these numbers ask for a negative coefficient of next_token'):
    calibrate(cells(*JOULES), [1787.7, 668.7, 120.0], [np.nan] * 3)
