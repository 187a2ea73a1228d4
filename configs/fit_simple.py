"""Does one law hold for the energy of all models? SIMPLE, fitted and tested.

Claim: as the label of the table says; the joules of
`experiments.measure_energy` are *measured*, those of a table of your own are
yours. Prints scores in sample and held out (a model, a family, long prompts),
errors by model and length, coefficients with intervals, and what a cached
prefix saves; writes figures.
Hardware: any; under a minute.
A table of your own has a request a line, and the columns model, input, output,
joules, layers, width, heads, kv_heads; if you like family, cached, head_dim,
vocab.
Commands:
  python -m experiments.fit_simple --config=configs/fit_simple.py
  python -m experiments.fit_simple --config=configs/fit_simple.py \
    --config.table=my_joules.csv --config.name=mine
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.name = 'h200'  # of the files written
  c.table = 'results/measure_energy/h200.csv'
  c.label = 'measured'  # what the table's joules are worth
  c.device = 'NVIDIA H200'  # that they were measured on
  c.variant = 'kv_split'  # the law of figures, coefficients and requests
  c.weights = 'relative'
  # Scores without these, too: the law was published for 1 to 9 B weights.
  c.small = ('smollm2-135m', 'qwen3-0.6b')
  c.resamples = 1000  # of the bootstrap over models
  c.seed = 0
  c.results = 'runs'  # `results` holds what README quotes
  return c
