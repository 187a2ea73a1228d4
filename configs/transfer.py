"""Do the energy coefficients of one platform hold on another?

Claim: the GPU's joules are *measured* (the table of
`experiments.measure_energy`); those of TPU v4, v5e, v5p and v6e are *modelled*
for the same models, lengths and batches: roofline time x power, published for
v4 only. What does not rest on the watts comes first: the ratios of the
coefficients of prefill, key/value reads and the next token. Then each
platform's law predicts the other's joules: as it is, after one factor, after
one a heading. The GPU modelled in the same way stands beside them, to tell the
platforms' difference from the model's.
Hardware: any; under a minute.
With a TPU and a power source of yours (a CSV of `time` and `watts`), measure
instead of modelling:
  python -m experiments.measure_energy --config=configs/measure_energy.py \
    --config.meter=csv:power.csv --config.name=tpu
and give the table as --config.others="('runs/measure_energy/tpu.csv',)".
Command:
  python -m experiments.transfer --config=configs/transfer.py
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.name = 'h200_tpus'  # of the files written
  c.table = 'results/measure_energy/h200.csv'
  c.label = 'measured'  # what the table's joules are worth
  c.chip = 'h200'  # that they were measured on
  c.chips = ('v4', 'v5e', 'v5p', 'v6e')  # modelled
  # Of these chips' own compilers, a step beside our counts (pip install
  # 'spinejax[aot]', half a minute a chip): of v5e, v5p and v6e.
  c.compiled = ()
  c.others = ()  # tables that were measured elsewhere
  c.variant = 'three_term'  # one coefficient a heading
  c.prompt_tokens = 8192  # read at once, as measured
  c.resamples = 1000  # of the bootstrap over models
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
