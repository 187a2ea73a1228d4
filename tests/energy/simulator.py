"""A table as measuring writes it, from a roofline instead of a meter."""

import csv

import numpy as np

from spinejax.energy.cells import architecture
from spinejax.energy.hardware import chip
from spinejax.energy.modelled import request_joules
from spinejax.target.memory import kv_bytes
from spinejax.target.presets import preset

MODELS = (
  'smollm2-1.7b', 'qwen3-4b', 'qwen3-8b', 'qwen2.5-7b', 'llama-3.2-1b',
  'llama-3.1-8b', 'llama-2-7b', 'granite-3.1-8b',
)  # fmt: skip


def write_table(
  path, names=MODELS, lengths=(64, 256, 1024, 4096), noise=0.03, scale=1.3
):
  """Requests in the batch that 84 GB hold; joules with noise, and one row
  that was run whole and must not be fitted."""
  rng, rows = np.random.default_rng(0), []
  for name in names:
    cfg = preset(name)
    tokens = (84e9 - 2 * cfg.parameters) / kv_bytes(cfg, 1, 1, 'bfloat16')
    for i in lengths:
      for o in lengths:
        batch = int(min(1024, tokens // max(i + o, 1152)))
        joules = request_joules(
          chip('h200'), cfg, i, o, batch=batch, prompt_tokens=8192
        )
        joules *= scale * np.exp(noise * rng.normal())
        rows.append(
          dict(model=name, family=name.split('-')[0], how='composed', input=i,
               output=o, joules=joules, batch=batch) | architecture(cfg)
        )  # fmt: skip
  rows.append(rows[-1] | dict(how='whole', joules=1e6))
  with open(path, 'w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
