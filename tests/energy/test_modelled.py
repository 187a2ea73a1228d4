"""What is modelled, by hand; published limits and stated assumptions."""

import dataclasses

import pytest

from spinejax.energy import cost, modelled
from spinejax.energy.hardware import CHIPS, TPUS, chip
from spinejax.target.presets import preset

LLAMA = preset('llama-3.1-8b')
PROTOCOL = dict(
  max_batch=1024, capacities=(1152, 8256), memory=0.8, prompts=(512, 4096),
  prompt_tokens=8192, contexts=((64, 1024), (1024, 4096, 8064)), rounds=4,
)  # fmt: skip


def test_roofline_by_hand():
  one = chip('v5e')
  # Bytes decide a lone step, operations a prompt.
  need = cost.step(LLAMA, 1, 1000)
  assert modelled.seconds(one, need) == need.bytes / 0.819e12
  need = cost.prefill(LLAMA, 1, 4096)
  assert modelled.seconds(one, need) == need.flops / 197e12
  assert modelled.seconds(one, need, 4) == need.flops / 197e12 / 4
  # 16 GB of weights, on chips of 16, 32 and 95 GB.
  chips = {name: modelled.chips_for(chip(name), LLAMA) for name in TPUS}
  assert chips == {'v4': 2, 'v5e': 4, 'v5p': 1, 'v6e': 2}


def test_requests_are_as_measured():
  one = chip('v4')
  rows = modelled.modelled_requests(one, LLAMA, (64, 1024), **PROTOCOL)
  assert [(r['input'], r['output']) for r in rows] == [
    (64, 64), (64, 1024), (1024, 64), (1024, 1024)
  ]  # fmt: skip
  short, long = rows[0], rows[3]
  # 64 GB less 16 GB of weights, in caches of 131072 bytes a token.
  assert short['batch'] == 240 and long['batch'] == 35 - 35 % 16
  assert short['joules'] == pytest.approx(2 * 170 * short['seconds'])
  assert short['joules_net'] == short['joules'] and short['chips'] == 2
  steps = sum(
    modelled.seconds(one, cost.step(LLAMA, 240, 64 + i), 2) / 240
    for i in range(64)
  )
  prompt = modelled.seconds(one, cost.prefill(LLAMA, 16, 512), 2) / 16 / 512
  assert short['seconds'] == pytest.approx(steps + 64 * prompt, rel=1e-3)
  # Twice the watts, twice the joules.
  hot = dataclasses.replace(one.watts, value=340)
  hot = dataclasses.replace(one, watts=hot)
  again = modelled.modelled_requests(hot, LLAMA, (64, 1024), **PROTOCOL)
  assert again[3]['joules'] == pytest.approx(2 * long['joules'])


def test_published_and_assumed(refused):
  assert {name for name in TPUS if CHIPS[name].watts.basis == 'published'} == {
    'v4'
  }
  assert CHIPS['v4'].watts.high == 192
  for one in CHIPS.values():
    assert one.watts.low < one.watts.value <= one.watts.high
  # Google: v6e does 67 % more per watt than v5e.
  v5e, v6e = CHIPS['v5e'], CHIPS['v6e']
  gain = v6e.flops / v6e.watts.value / (v5e.flops / v5e.watts.value)
  assert gain == pytest.approx(1.67, rel=0.01)
  with refused("chip 'v7', expected one of h100, h200, v4, v5e, v5p, v6e"):
    chip('v7')
