"""Where speculation saves time, energy, both or neither: the operating map.

Claim: at each number of requests and each context, for a few acceptances: the
regions by laws of rounds that are fitted to *measured* joules and milliseconds
(the table of `experiments.speculation_energy`), with the measured places on
them, and how far the laws are off at places that were left out of the fit.
Below them the same for other chips, *modelled*: roofline time times one power.
Also printed: break-even tokens a round by place, which is the evidence for two
claims: that speculation becomes an energy loss with many requests, and that
long contexts turn it into a gain again.
Hardware: any; under a minute.
Numbers: <results>/operating_map/<name>.json and .png. `:modelled` needs no
table: an H200 and TPUs by their published limits alone.
Commands:
  python -m experiments.operating_map --config=configs/operating_map.py
  python -m experiments.operating_map --config=configs/operating_map.py:smollm2
  python -m experiments.operating_map --config=configs/operating_map.py:modelled
"""

import ml_collections

VARIANTS = ('qwen3_8b', 'smollm2', 'modelled')


def get_config(variant: str = 'qwen3_8b'):
  if variant not in VARIANTS:
    raise ValueError(f'variant {variant!r}, expected {", ".join(VARIANTS)}')
  small, modelled = variant == 'smollm2', variant == 'modelled'
  c = ml_collections.ConfigDict()
  c.name = f'map_{variant}'  # of the files written
  # '': only what is modelled.
  c.table = 'results/speculation_energy/h200.json'
  if modelled:
    c.table = ''
  c.target = 'smollm2-135m' if small else 'qwen3-8b'  # its shape is used
  c.dtype = 'bfloat16'

  # The drafter, as it was measured.
  c.drafter = ml_collections.ConfigDict()
  c.drafter.name = 'dspine'  # of dspine, dflash2 and dflash
  c.drafter.block = 16  # rows
  c.drafter.layers = 5
  c.drafter.taps = 5
  c.drafter.rank = 384 if small else 1024
  c.drafter.message = 256 if small else 512

  # Tokens a round, each slot as good as the others: a column each.
  c.tokens = (2.0, 3.0, 4.0, 6.0)
  # Acceptance on text, for the share of savings whose sign is right.
  c.texts = ('results/acceptance/smollm2-135m-dspine.json',)
  c.chips = ('h200', 'v5p', 'v6e') if modelled else ('v6e',)  # modelled
  c.batches = (1, 256)  # from, to
  c.contexts = (128, 16384)
  c.points = 49  # of the map, each way

  c.results = 'runs'  # `results` holds what README quotes
  return c
