"""Each Pallas kernel beside XLA's own fusion of its reference, by shape.

Claim: *synthetic* (random weights): microseconds of a layer, when several run
in one program, each with weights of its own, together more than the second
cache holds; bytes and operations from the shapes, and the share of the
published limits of the chip. A kernel that loses is reported like one that
wins, and not used by default.
Hardware: one H100 or H200, five minutes; on a CPU `:toy` runs the kernels in
interpreters, whose times mean nothing.
Commands:
  python -m experiments.kernel_bench --config=configs/kernel_bench.py
  python -m experiments.kernel_bench --config=configs/kernel_bench.py \
    --config.ops="('injection',)" --config.shapes="('qwen3-8b_1',)"
"""

import ml_collections


def get_config(variant: str = 'all'):
  if variant not in ('all', 'toy'):
    raise ValueError(f'variant {variant!r}, expected all or toy')
  c = ml_collections.ConfigDict()
  c.name = 'kernels'  # of the file written
  c.ops = ('injection', 'transition', 'block_attention')
  c.shapes = ()  # named shapes; () for all
  c.toy = variant == 'toy'
  c.calls = 1 if c.toy else 10  # of a program, before it is waited for
  c.repeats = 1 if c.toy else 7
  # Keep the first layer's inputs and output, for `platforms` to compare with.
  c.outputs = False
  c.results = 'runs'  # `results` holds what README quotes
  return c
