"""What is modelled, by hand; published limits and stated assumptions."""

import dataclasses

import pytest

from spinejax.energy import cost
from spinejax.energy.hardware import CHIPS, TPUS, chip
from spinejax.energy.modelled import compiled_step, request_joules, seconds
from spinejax.target.config import TargetConfig
from spinejax.target.presets import preset

LLAMA = preset('llama-3.1-8b')


def test_roofline_by_hand():
  one = chip('v5e')
  # Bytes decide a lone step, operations a prompt.
  need = cost.step(LLAMA, 1, 1000)
  assert seconds(one, need) == need.bytes / 0.819e12
  need = cost.prefill(LLAMA, 1, 4096)
  assert seconds(one, need) == need.flops / 197e12


@pytest.mark.parametrize('batch', (1, 200, 1024))
def test_a_request_is_its_passes(batch):
  one = chip('v4')
  found = request_joules(one, LLAMA, 512, 100, batch=batch, prompt_tokens=8192)
  took = seconds(one, cost.prefill(LLAMA, 16, 512)) / 16
  for t in range(100):
    took += seconds(one, cost.step(LLAMA, batch, 512 + t)) / batch
  assert found == pytest.approx(170 * took, rel=1e-4)
  # Twice the watts, twice the joules.
  hot = dataclasses.replace(one.watts, value=340)
  again = request_joules(
    dataclasses.replace(one, watts=hot), LLAMA, 512, 100, batch=batch,
    prompt_tokens=8192,
  )  # fmt: skip
  assert again == pytest.approx(2 * found)


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


def test_a_chip_without_a_compiler_here_is_refused(refused):
  cfg = TargetConfig(
    'llama', vocab=64, width=32, layers=1, heads=2, kv_heads=1, head_dim=16,
    ffn=64,
  )  # fmt: skip
  with refused("target = 'h200', expected one of ..."):
    compiled_step(chip('h200'), cfg, 16, 255)
