"""Kernels and the whole round on an H100 beside TPUs, without hardware.

Claim: *compiled* for chips that are not there: memory, and of TPUs the
compiler's own estimate of the time of XLA's fusion of the reference;
*modelled*: the published limits of the chip; *measured*, on the GPU that a file
of `kernel_bench` is from (`measured`), and on the device of this machine where
`platform` names it. `outputs` compares the TPU kernels, interpreted, with what
another device computed from the same inputs. The round is that of DSpine for a
target cut to a few layers; its model is reading the target's weights.
Hardware: none, but for `platforms` the packages of the extra `aot`; ten minutes
on two cores.
Commands:
  python -m experiments.platforms --config=configs/platforms.py
  python -m experiments.platforms --config=configs/platforms.py \
    --config.platform=tpu --config.mesh=model=4 --config.platforms="()"
"""

import ml_collections


def get_config(variant: str = 'all'):
  if variant not in ('all', 'toy'):
    raise ValueError(f'variant {variant!r}, expected all or toy')
  c = ml_collections.ConfigDict()
  c.name = 'platforms'  # of the files written
  c.toy = variant == 'toy'
  c.platforms = ('h100', 'v5e', 'v6e', 'v5p', 'tpu7x')  # () for none
  c.ops = ('injection', 'transition', 'block_attention')
  c.measured = ''  # a result file of kernel_bench
  c.outputs = ''  # a file of arrays of kernel_bench, or ''
  # 'tpu', 'gpu' or 'cpu', as this machine is: kernels and round are timed, too.
  c.platform = ''
  c.mesh = ''  # of its devices, for the round: 'model=4'; '' takes one
  c.calls = 1 if c.toy else 10  # as of kernel_bench
  c.repeats = 1 if c.toy else 7
  c.round = True
  c.target = 'smollm2-135m' if c.toy else 'qwen3-8b'
  c.layers = 8  # of the target, in a round
  c.batch = 1 if c.toy else 8
  c.capacity = 128 if c.toy else 1280
  c.drafter = ml_collections.ConfigDict()
  c.drafter.layers = 2
  c.drafter.block = 16
  c.drafter.taps = 5
  c.drafter.rank = 64 if c.toy else 1024
  c.drafter.message = 64 if c.toy else 512
  c.results = 'runs'
  return c
