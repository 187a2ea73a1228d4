"""A table of requests as measuring writes it, from a roofline: *modelled*."""

import csv
import os
from collections.abc import Sequence

from spinejax.energy.cells import architecture
from spinejax.energy.hardware import chip
from spinejax.energy.modelled import request_joules
from spinejax.target.memory import kv_bytes
from spinejax.target.presets import preset

# Bytes for weights and caches, and the least tokens a cache is made for.
_MEMORY, _LEAST, _MOST_REQUESTS = 84e9, 1152, 1024
_PROMPT_TOKENS = 8192  # read at once


def rows(
  models: Sequence[str], lengths: Sequence[int], name: str = 'h200'
) -> list[dict]:
  """All inputs with all outputs, in the batch that memory allows.

  Args:
    models: presets.
    name: of the chip, see `energy.hardware`.

  Returns:
    The columns of the table of `experiments.measure_energy` that laws read.
  """
  made = []
  for model in models:
    cfg = preset(model)
    tokens = (_MEMORY - 2 * cfg.parameters) / kv_bytes(cfg, 1, 1, 'bfloat16')
    for i in lengths:
      for o in lengths:
        batch = int(min(_MOST_REQUESTS, tokens // max(i + o, _LEAST)))
        joules = request_joules(
          chip(name), cfg, i, o, batch=batch, prompt_tokens=_PROMPT_TOKENS
        )
        made.append(
          dict(model=model, family=model.split('-')[0], how='composed',
               input=i, output=o, joules=joules, batch=batch)
          | architecture(cfg)
        )  # fmt: skip
  return made


def write(path: str | os.PathLike[str], table: Sequence[dict]) -> None:
  """Writes rows as the CSV that `experiments.fit_simple` reads."""
  with open(path, 'w', newline='') as file:
    writer = csv.DictWriter(file, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
