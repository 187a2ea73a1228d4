"""Whether a drafter's confidences are probabilities, and what makes them such.

Claim: on rounds that were held out, the calibration error of the survival of
1, 2, ... proposals, before and after sequential temperature scaling on other
rounds; the temperatures are what `Schedule.fill` takes. Tokens do not change.
Hardware: one GPU, a minute a drafter and temperature; `:cpu` 5 minutes on two
CPU cores.
Commands:
  python -m experiments.calibrate --config=configs/calibrate.py
  python -m experiments.calibrate --config=configs/calibrate.py:cpu
"""

import ml_collections


def get_config(variant: str = 'gpu'):
  if variant not in ('gpu', 'cpu'):
    raise ValueError(f'variant {variant!r}, expected gpu or cpu')
  cpu = variant == 'cpu'
  c = ml_collections.ConfigDict()
  c.name = 'calibrate'  # of the files written; the same overwrites
  c.target = 'smollm2-135m'
  # Names of drafters that come with the package, or folders of trained ones.
  c.drafters = ('smollm2-135m-dspine',)
  c.block = 0  # rows of a block; 0: as trained
  # humaneval, arithmetic, or paths of .jsonl ({"turns": [...]}) or .txt files.
  c.prompts = 'humaneval'
  c.limit = 24 if cpu else 0  # prompts of each, the first ones; 0: all
  c.max_new_tokens = 64 if cpu else 256
  c.batch = 12 if cpu else 128  # prompts decoded at a time
  c.temperatures = (0.0, 1.0)
  c.dtype = 'float32' if cpu else 'bfloat16'
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
