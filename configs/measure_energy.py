"""Joules of requests, by model and length, on this machine.

Claim: joules are *measured* by the device's own counter; weights are random
(*synthetic*) in the shapes of published models. Steady pieces are measured:
reading prompts of a few lengths, and decoding from a few contexts, in the
batch that memory allows up to `max_batch` (recorded). Requests of all pairs of
`lengths` are composed from them; those of `whole` are also run as they are,
and must agree within 5 %.
Hardware: one GPU. Expected on an H200, a model: 5 programs compiled side by
side in 25 s, 8 windows in 38 s, weights, caches and idle 12 s: 75 s. 15 models
and 6 whole requests: 21 minutes, in calls of at most 10:
  1. as it is                         (7 models in the 9 minutes of the budget)
  2. the same again                   (7 more)
  3. with --config.repeats=2          (the last one; second windows of others
                                       while the budget lasts)
Each call goes on where the last one stopped, and ends with the table of
requests as far as there are models.
Numbers: <results>/measure_energy/<name>.json, and <name>.csv for
`experiments.fit_simple`. `:cpu` shows the way in a minute on any machine; it
needs a meter: RAPL, or a power log of yours (--config.meter=csv:<file>).
Commands:
  python -m experiments.measure_energy --config=configs/measure_energy.py
  python -m experiments.measure_energy --config=configs/measure_energy.py:cpu
"""

import ml_collections


def get_config(variant: str = 'gpu'):
  if variant not in ('gpu', 'cpu'):
    raise ValueError(f'variant {variant!r}, expected gpu or cpu')
  cpu = variant == 'cpu'
  c = ml_collections.ConfigDict()
  c.name = f'energy_{variant}'  # of the files written
  # Shapes (presets, or paths of which only config.json is read) by family.
  c.families = ml_collections.ConfigDict()
  c.families.smollm2 = ('smollm2-135m', 'smollm2-1.7b')
  if not cpu:
    c.families.qwen3 = ('qwen3-0.6b', 'qwen3-4b', 'qwen3-8b')
    c.families.qwen2 = ('qwen2.5-1.5b', 'qwen2.5-7b')
    c.families.llama3 = ('llama-3.2-1b', 'llama-3.2-3b', 'llama-3.1-8b')
    c.families.llama2 = ('llama-2-7b', 'tinyllama-1.1b')
    c.families.granite = ('granite-3.1-2b', 'granite-3.1-8b')
    c.families.deepseek = ('deepseek-llm-7b',)
  c.dtype = 'float32' if cpu else 'bfloat16'

  # Caches hold requests of so many tokens; short requests get more of them.
  c.capacities = (128, 320) if cpu else (1152, 2304, 8256)
  c.max_batch = 2 if cpu else 1024
  c.memory = 0.8  # share of the memory that weights leave, for caches
  # Steady pieces. Prompts of a length are read so many tokens at a time.
  c.prompts = (32, 128) if cpu else (512, 4096)
  c.prompt_tokens = 128 if cpu else 8192
  # Contexts that decoding starts at, two or more for each capacity.
  c.contexts = ((16, 96), (96, 224))
  if not cpu:
    c.contexts = ((64, 1024), (512, 2048), (1024, 8064))
  c.rounds = 8 if cpu else 32  # steps in a call
  c.seconds = 3.0  # of a window, at least
  c.settle = 0.7  # before it: clocks, power and its readings settle
  c.idle_seconds = 2.0
  c.repeats = 1  # windows of each piece, in another order each time

  # Inputs and outputs of the requests that are composed.
  c.lengths = (32, 64, 128) if cpu else (64, 128, 256, 512, 1024, 2048, 4096)
  # Requests run whole: model, input (of `prompts`), output.
  c.whole = () if cpu else (
    ('smollm2-1.7b', 512, 256), ('smollm2-1.7b', 4096, 64),
    ('llama-3.2-1b', 512, 512), ('llama-3.2-1b', 4096, 128),
    ('qwen3-4b', 512, 128), ('qwen3-4b', 4096, 64),
  )  # fmt: skip
  c.baseline = 'smollm2-135m'  # decoded first and last: has anything drifted?

  c.meter = ''  # gpu, cpu, csv:<file>; '': of the device in use
  c.budget_minutes = 1.0 if cpu else 9.0
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
