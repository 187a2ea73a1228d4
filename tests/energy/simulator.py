"""A table as measuring writes it, from a roofline instead of a meter."""

import numpy as np

from experiments import modelled_table

MODELS = (
  'smollm2-1.7b', 'qwen3-4b', 'qwen3-8b', 'qwen2.5-7b', 'llama-3.2-1b',
  'llama-3.1-8b', 'llama-2-7b', 'granite-3.1-8b',
)  # fmt: skip


def write_table(
  path, names=MODELS, lengths=(64, 256, 1024, 4096), noise=0.03, scale=1.3
):
  """Requests in the batch that 84 GB hold; joules with noise, and one row
  that was run whole and must not be fitted."""
  rng = np.random.default_rng(0)
  rows = modelled_table.rows(names, lengths)
  for row in rows:
    row['joules'] *= scale * np.exp(noise * rng.normal())
  rows.append(rows[-1] | dict(how='whole', joules=1e6))
  modelled_table.write(path, rows)
