"""What a step costs: plain, verification of more rows, and a whole round.

Claim: *synthetic*: random weights of a published shape, caches filled with
noise. The times are those of the real compiled loop, beside the rate at which
the same device copies memory; the share of each stage is a profiler's. Its
traces are kept for TensorBoard, which shows them with `pip install xprof`.
Hardware: one GPU with 80 GB for the default, 10 minutes; `:cpu` a minute on
two CPU cores.
Commands:
  python -m experiments.step_time --config=configs/step_time.py
  python -m experiments.step_time --config=configs/step_time.py:cpu
"""

import ml_collections


def get_config(variant: str = 'gpu'):
  if variant not in ('gpu', 'cpu'):
    raise ValueError(f'variant {variant!r}, expected gpu or cpu')
  cpu = variant == 'cpu'
  c = ml_collections.ConfigDict()
  c.name = f'step_time_{variant}'  # of the files written
  # Presets, packaged names or paths; of a path only config.json is read.
  c.targets = ('smollm2-135m',) if cpu else ('qwen3-8b',)
  c.dtype = 'float32' if cpu else 'bfloat16'
  c.batches = (1,) if cpu else (1, 8, 32)
  c.contexts = (256,) if cpu else (1024,)  # when a call starts
  c.capacity = 0  # rows of the caches; 0: the bucket that decoding would take
  c.rows = (1, 4, 8) if cpu else (1, 2, 4, 8, 16, 32)  # verified at once
  c.packed = (0.5,)  # of the rows of a batch, verified packed; () for none
  c.drafters = ('dspine',)  # of dspine, dflash2 and dflash; () for none
  c.rounds = 4 if cpu else 32  # in one call
  c.repeats = 5  # calls

  c.drafter = ml_collections.ConfigDict()
  c.drafter.layers = 5
  c.drafter.block = 8 if cpu else 16
  c.drafter.taps = 5  # evenly spaced target layers
  c.drafter.rank = 384 if cpu else 1024  # of dspine, as is the next
  c.drafter.message = 256 if cpu else 512

  c.results = 'runs'  # `results` holds what README quotes
  return c
