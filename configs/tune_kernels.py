"""The fastest config of each kernel by named shape, on the device at hand.

Claim: *synthetic* (random weights): as `configs/kernel_bench.py` times, of the
configs that each kernel's `candidates` lists. Writes
`pallas_kernels/<op>/tuned/<device kind>.json`, which makes a kernel the default
for the shapes at which it beats XLA.
Hardware: one H100 or H200, ten minutes; `:toy` runs on a CPU in interpreters.
Commands:
  python -m experiments.tune_kernels --config=configs/tune_kernels.py
  python -m experiments.tune_kernels --config=configs/tune_kernels.py \
    --config.ops="('injection',)"
"""

import ml_collections


def get_config(variant: str = 'all'):
  if variant not in ('all', 'toy'):
    raise ValueError(f'variant {variant!r}, expected all or toy')
  c = ml_collections.ConfigDict()
  c.ops = ('injection', 'transition', 'block_attention')
  c.toy = variant == 'toy'
  c.most = 1 if c.toy else 0  # candidates of a shape; 0: all
  c.most_error = 1e-2  # relative to the reference in float32
  c.calls = 1 if c.toy else 10  # of a program, before it is waited for
  c.repeats = 1 if c.toy else 5
  c.out = 'runs/tuned' if c.toy else ''  # '': where the library looks
  return c
