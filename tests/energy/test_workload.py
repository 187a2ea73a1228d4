"""Pieces are the programs that decode; requests are composed of them."""

import jax
import numpy as np
import pytest

from spinejax.energy.compose import measured, requests
from spinejax.energy.workload import Piece, Tier, Workload, tier, tier_of
from spinejax.target import model
from spinejax.target.config import TargetConfig

CFG = TargetConfig(
  'llama', vocab=64, width=32, layers=1, heads=4, kv_heads=2, head_dim=8,
  ffn=48,
)  # fmt: skip
SMALL = Tier(4, 64)
PARAMS = model.random_params(CFG, jax.random.key(0))


def test_reading_prompts_is_the_forward_pass():
  tokens_BQ = jax.random.randint(jax.random.key(1), (2, 24), 0, CFG.vocab)

  @jax.jit
  def both():
    whole, own = (model.init_cache(CFG, batch, 64) for batch in (4, 2))
    found = model.read_prompts(CFG, PARAMS, tokens_BQ, whole, 1)
    return found, model.forward(CFG, PARAMS, tokens_BQ, own)

  (hidden, cache), out = both()
  np.testing.assert_allclose(hidden, out.hidden_BQD, atol=1e-4)
  for ours, theirs in zip(
    (*cache.k, *cache.v), (*out.cache.k, *out.cache.v), strict=True
  ):
    np.testing.assert_allclose(ours[1:3, :, :24], theirs[:, :, :24], atol=1e-5)
    assert not ours[0].any() and not ours[3].any() and not ours[:, :, 24:].any()


def test_decoding_is_greedy_decoding():
  prefill = Piece('prefill', SMALL, 2, 16)
  decode = Piece('decode', SMALL, 4, 16, rounds=8)
  work = Workload(CFG, PARAMS, [prefill, decode])
  tokens_BT = work.run_whole(prefill, decode, output=5)
  # The prompts are ones; the anchor, which no one wrote, is a zero.

  @jax.jit
  def last(tokens_BQ):  # of all before it, without a cache to go wrong
    cache = model.init_cache(CFG, 1, 32)
    out = model.forward(CFG, PARAMS, tokens_BQ, cache)
    return model.unembed(out.hidden_BQD, PARAMS.head_VD).argmax(-1)

  text = np.array([[1] * 16 + [0] * 6])
  for at in range(16, 21):
    text[0, at + 1] = last(text)[0, at]
  wrote = text[0, 17:22].tolist()
  for row in np.asarray(tokens_BT):
    assert row[17:22].tolist() == wrote
    assert not row[22:].any()


def test_every_round_runs_from_the_context():
  decode = Piece('decode', SMALL, 4, 54, rounds=8)
  assert decode.context == 57.5
  tokens_BT = np.asarray(Workload(CFG, PARAMS, [decode]).run(decode))
  assert not tokens_BT[:, :55].any()
  assert (tokens_BT[:, 55:63] != 0).sum() > 24  # eight each, few of them zero


def test_tiers(refused):
  each = 2 * CFG.layers * 2 * 8 * 4 * 64
  assert tier(CFG, 64, 1024, 40 * each, 'float32') == Tier(32, 64)
  assert tier(CFG, 64, 1024, 7 * each, 'float32') == Tier(7, 64)
  assert tier(CFG, 64, 24, 99 * each, 'float32') == Tier(16, 64)
  with refused('a cache of 64 tokens takes 0.0 GiB, 0.0 GiB are free for it'):
    tier(CFG, 64, 8, each - 1, 'float32')
  long = Tier(2, 256)
  assert tier_of((long, SMALL), 62) == SMALL
  assert tier_of((long, SMALL), 63) == long
  with refused('255 tokens, expected at most 254'):
    tier_of((long, SMALL), 255)
  with refused('decode of 4 x 60 tokens does not fit 4 x 64'):
    Workload(CFG, PARAMS, [Piece('decode', SMALL, 4, 60, 8)])


def pieces(prefill, step, idle=0.0):
  """Rows of pieces: prefill(I) joules a prompt, step(B, c) a whole step."""
  rows = [dict(kind='idle', watts=idle)]
  for tokens in (64, 512):
    rows.append(dict(
      kind='prefill', longest=600, batch=4, tokens=tokens, context=0,
      joules=4 * prefill(tokens), seconds=tokens,
    ))  # fmt: skip
  for longest, batch in ((600, 8), (2000, 2)):
    for context in (10.5, longest / 2):
      rows.append(dict(
        kind='decode', longest=longest, batch=batch, tokens=context, rounds=10,
        context=context, joules=10 * step(batch, context), seconds=10 * batch,
      ))  # fmt: skip
  return rows


def test_composition_by_hand():
  def prefill(tokens):
    return 0.5 * tokens + 1e-3 * tokens**2

  def step(batch, context):  # weights, products, keys and values
    return 7 + 2 * batch + 0.01 * batch * context

  rows = pieces(prefill, step)
  law = measured(rows, 'joules')
  assert law.longest == 2000 and law.tokens == 4800
  # As many as fit, no more than were measured.
  for prompt, output, batch in ((100, 60, 8), (500, 460, 5), (512, 1400, 2)):
    assert law.batch(prompt, output) == batch
    steps = sum(step(batch, prompt + t) for t in range(output)) / batch
    assert law.request(prompt, output) == pytest.approx(prefill(prompt) + steps)
  steps = sum(step(3, 100 + t) for t in range(60)) / 3
  assert law.request(100, 60, 3) == pytest.approx(prefill(100) + steps)
  # Repeats count half each.
  rows += [row | dict(joules=3 * row['joules']) for row in rows[1:]]
  twice = measured(rows, 'joules').request(200, 300)
  assert twice == pytest.approx(2 * law.request(200, 300))


def test_requests_gross_and_net(refused):
  rows = pieces(lambda i: 5.0 * i, lambda b, c: 9.0 * b, idle=0.5)
  rows += [dict(kind='idle', watts=1.5)]
  rows += [dict(kind='whole', input=64, output=10, batch=2, joules=400.0,
                seconds=40.0)]  # fmt: skip
  *table, whole = requests(rows, (64, 512))
  assert [(r['input'], r['output']) for r in table] == [
    (64, 64), (64, 512), (512, 64), (512, 512)
  ]  # fmt: skip
  first = table[0]
  assert first['how'] == 'composed' and first['batch'] == 8
  assert first['joules'] == pytest.approx(5 * 64 + 9 * 64)
  # One second a step, a quarter of one a prompt token; at one watt.
  assert first['seconds'] == pytest.approx(64 + 64 / 4)
  assert first['joules_net'] == pytest.approx(14 * 64 - 64 - 16)
  assert table[3]['batch'] == 4
  assert whole['how'] == 'whole' and whole['joules'] == 400
  assert whole['joules_net'] == 360 and whole['batch'] == 2
  assert whole['composed'] == pytest.approx(5 * 64 + 9 * 10)
  with refused('no idle power was measured'):
    requests(rows[1:-2], (64,))
  with refused('no piece of prefill was measured'):
    measured([r for r in rows if r['kind'] == 'decode'], 'joules')
  with refused('batch 2: steps at 1 context, expected at least 2'):
    measured(rows[:6], 'joules')
  with refused('1500 + 501 tokens, expected at most 2000'):
    measured(rows, 'joules').request(1500, 501)
