"""Serving: tokens a second and latencies of drafters under load, side by side.

Claim: DSpine serves faster than plain decoding, most at low concurrency.
`:smollm2` is *measured*: real text and the shipped drafter. `:qwen3_8b` is
*synthetic*: random weights of that shape, and acceptance drawn from given
distributions, while drafts and verification are computed as ever.
Hardware: one H200, 10 minutes for `:smollm2` and 30 for `:qwen3_8b`, of which
half is compiling; `:cpu` 5 minutes on two CPU cores.
Commands:
  python -m experiments.throughput --config=configs/throughput.py:smollm2
  python -m experiments.throughput --config=configs/throughput.py:qwen3_8b
  python -m experiments.throughput --config=configs/throughput.py:cpu
With the scheduler beside them: --config.schedule=True.
A run that was cut goes on when the same command is given again.
"""

import ml_collections

VARIANTS = ('smollm2', 'qwen3_8b', 'cpu')


def get_config(variant: str = 'smollm2'):
  if variant not in VARIANTS:
    raise ValueError(f'variant {variant!r}, expected {", ".join(VARIANTS)}')
  cpu, synthetic = variant == 'cpu', variant == 'qwen3_8b'
  c = ml_collections.ConfigDict()
  c.name = f'throughput_{variant}'  # of the files written
  c.synthetic = synthetic
  # Synthetic: a preset, packaged name or path, of which the shape is taken.
  c.target = 'qwen3-8b' if synthetic else 'smollm2-135m'
  # Beside plain. Synthetic: of dspine, dflash2 and dflash.
  c.drafters = ('smollm2-135m-dspine',)
  if synthetic:
    c.drafters = ('dflash', 'dflash2', 'dspine')
  c.block = 4 if cpu else 16  # rows that a round verifies
  c.dtype = 'float32' if cpu else 'bfloat16'

  # humaneval, arithmetic, or paths of .jsonl or .txt files, each of which is
  # measured; not for synthetic, whose prompts are random.
  c.prompts = 'humaneval,arithmetic'
  c.limit = 8 if cpu else 0  # prompts of each; 0: all
  c.prompt_tokens = 128  # of synthetic prompts
  c.max_new_tokens = 32 if cpu else 512 if synthetic else 256
  c.temperature = 0.0
  c.top_k = 0
  c.top_p = 1.0
  c.seed = 0

  # Closed loop: so many clients, each of which asks so many times; of few
  # clients, so many requests in all at least.
  c.concurrencies = (1, 2) if cpu else (1, 2, 4, 8, 16, 32)
  c.per_client = 2 if cpu else 3 if synthetic else 6
  c.requests = 4 if cpu or synthetic else 16
  # Open loop: Poisson arrivals a second, at as many slots as the most clients.
  c.rates = (0.5,) if cpu else (6.0,) if synthetic else (16.0, 64.0)
  c.arrivals = 4 if cpu else 48 if synthetic else 128  # requests of each rate
  c.repeats = 1  # of everything, drafters in turn

  # Synthetic: P(proposals 1..j are all accepted), by distribution and drafter:
  # a list; a number, which is the tokens a round of equally good slots; or, for
  # all drafters, a result file with `acceptance_by_position`.
  c.acceptance = ml_collections.ConfigDict()
  if synthetic:
    # Qwen3-8B's means over four workloads, arXiv 2609.36173.
    c.acceptance.paper = ml_collections.ConfigDict(
      {'dspine': 4.82, 'dflash2': 4.39, 'dflash': 3.77}
    )
    c.acceptance.measured = 'results/study/smollm2-135m-3000.json'

  # Time to the first token of a prompt whose first share is in the prefix
  # cache, and of one that is not; with the last drafter. 0 repeats: not at all.
  c.prefix = ml_collections.ConfigDict()
  c.prefix.tokens = 512 if cpu else 4096
  c.prefix.cached = 0.9
  c.prefix.repeats = 1 if cpu else 5

  # The last drafter once more, with a scheduler that drafts as much as pays
  # (docs/scheduling.md); three more programs for each number of slots.
  c.schedule = False
  c.slots_per_reader = 8  # for so many slots a prompt can be read
  # The engine; see `spinejax.decode.batch.Settings`.
  c.engine = ml_collections.ConfigDict()
  c.engine.chunks = (32, 128) if cpu else (128,)
  c.engine.rounds = 8 if synthetic else 16
  c.engine.widths = ()  # of the open loop

  c.drafter = ml_collections.ConfigDict()  # of synthetic ones
  c.drafter.layers = 5
  c.drafter.taps = 5  # evenly spaced target layers
  c.drafter.rank = 1024  # of dspine, as is the next
  c.drafter.message = 512

  c.results = 'runs'  # `results` holds what README quotes
  return c
