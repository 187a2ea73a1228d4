"""Tokens a round of any drafters on any prompts.

Claim: with its interval over prompts, by set and position, at temperatures 0
and 1, by real decoding; no time is measured here (see
configs/decode_smollm2.py for that). `--config.offline` decodes once, by the
first drafter, and lets the others draft along those answers (temperature 0).
Hardware: one GPU, a minute a drafter; `:cpu` 5 minutes on two CPU cores.
Commands:
  python -m experiments.acceptance --config=configs/acceptance.py
  python -m experiments.acceptance --config=configs/acceptance.py:cpu
  python -m experiments.acceptance --config=configs/acceptance.py \
    --config.drafters="('runs/smollm2-135m-dflash',)"
"""

import ml_collections


def get_config(variant: str = 'gpu'):
  if variant not in ('gpu', 'cpu'):
    raise ValueError(f'variant {variant!r}, expected gpu or cpu')
  cpu = variant == 'cpu'
  c = ml_collections.ConfigDict()
  c.name = 'acceptance'  # of the files written; the same overwrites
  c.target = 'smollm2-135m'
  # Names of drafters that come with the package, or folders of trained ones.
  c.drafters = ('smollm2-135m-dspine',)
  c.block = 0  # rows of a block; 0: as trained
  # humaneval, arithmetic, or paths of .jsonl ({"turns": [...]}) or .txt files.
  c.prompts = 'humaneval,arithmetic'
  c.limit = 4 if cpu else 0  # prompts of each, the first ones; 0: all
  c.max_new_tokens = 64 if cpu else 256
  c.batch = 8 if cpu else 512  # prompts decoded at a time
  c.temperatures = (0.0, 1.0)
  c.offline = False
  c.dtype = 'float32' if cpu else 'bfloat16'
  c.mesh = ''
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
