"""Joules of a token, plain and with drafters, by load, context and acceptance.

Claim: joules and milliseconds of rounds are *measured*; weights are random
(*synthetic*) in the shapes of SmolLM2-135M and Qwen3-8B. A round takes the same
whatever is accepted in it, so rounds are measured once a drafter, batch and
context, in random order, and tokens are composed of them: by acceptance that
was measured on text (`texts`), and by acceptance that is given (`tokens`,
*synthetic*). Rounds of `whole` run with acceptance forced, their contexts
growing, and their tokens must agree with composed ones within 5 %. Batches and
contexts whose caches do not fit are left out beforehand, and recorded.
Hardware: one GPU. Expected on an H200: 36 places (two shapes; 5 batches x 4
contexts, less what does not fit), at which 135 rounds are measured, 27 of them
twice, and 6 whole: 168 windows of 3.3 s are 9 minutes; 38 programs, compiled
batch by batch, 3 to 4 minutes; weights, caches, idle and baseline 1 minute. 14
minutes, in calls of at most 10:
  1. as it is                          (9 minutes)
  2. the same again                    (6 minutes)
Each call goes on where the last one stopped, after any window.
Numbers: <results>/speculation_energy/<name>.json, for
`experiments.operating_map`. `:cpu` shows the way in 4 minutes on two cores; it
needs a meter: RAPL, or a power log of yours (--config.meter=csv:<file>).
Commands:
  XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 python -m experiments.speculation_energy \
    --config=configs/speculation_energy.py
  python -m experiments.speculation_energy \
    --config=configs/speculation_energy.py:cpu
"""

import ml_collections


def get_config(variant: str = 'gpu'):
  if variant not in ('gpu', 'cpu'):
    raise ValueError(f'variant {variant!r}, expected gpu or cpu')
  cpu = variant == 'cpu'
  c = ml_collections.ConfigDict()
  c.name = f'speculation_{variant}'  # of the files written
  # Presets, or paths of which only config.json is read; rank and message of
  # their dspine.
  c.targets = (('smollm2-135m', 384, 256),)
  if not cpu:
    c.targets += (('qwen3-8b', 1024, 512),)
  # Beside plain: name, rows of a block, and batches (none: all of them).
  c.drafters = (('dspine', 4, ()),)
  if not cpu:
    some = (1, 32, 256)
    c.drafters = (
      ('dspine', 16, ()), ('dspine', 8, some), ('dflash2', 16, some),
      ('dflash', 16, some),
    )  # fmt: skip
  c.dtype = 'float32' if cpu else 'bfloat16'
  c.batches = (1, 2, 4) if cpu else (1, 8, 32, 128, 256)
  c.contexts = (32, 200) if cpu else (128, 1024, 4096, 16384)  # means
  c.rounds = 4 if cpu else 32  # in a call at most
  c.call_seconds = 0.4  # of a call at most, about: long rounds are fewer
  c.seconds = 2.0  # of a window, at least
  c.settle = 0.5  # before it: clocks, power and its readings settle
  c.idle_seconds = 2.0
  c.again = 0.2  # share of the rounds that are measured twice

  # Tokens that a request gets from a round of the widest block, each slot as
  # good as the others; shorter blocks get what these slots give.
  c.tokens = (2.0, 3.0) if cpu else (2.0, 3.0, 4.0, 6.0)
  # Results of `experiments.acceptance`, whose drafters count for all rows.
  c.texts = ('results/acceptance/smollm2-135m-dspine.json',)
  # Run whole: batch, context, tokens a round; with the first drafter.
  c.whole = ((2, 200, 2.0),) if cpu else (
    (1, 4096, 3.0), (32, 1024, 4.0), (128, 1024, 6.0),
  )  # fmt: skip
  c.baseline = 'smollm2-135m'  # decoded first and last: has anything drifted?

  c.drafter = ml_collections.ConfigDict()
  c.drafter.layers = 5
  c.drafter.taps = 5  # evenly spaced target layers

  c.meter = ''  # gpu, cpu, csv:<file>; '': of the device in use
  c.budget_minutes = 5.0 if cpu else 9.0
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
