"""SmolLM2-135M in spinejax and in Hugging Face transformers, on one device.

Claim: with the same weights, on the same prompts, greedily and one at a time,
how many tokens a second each system gives, and how many times those of
transformers with its compiled static cache.
Hardware: one GPU, about 10 minutes, most of them spent in transformers
without a compiled cache. It needs `pip install torch transformers`. It runs on
a CPU too, but is no comparison there: torch compiles for GPUs, and on a CPU its
compiled static cache is slower than the dynamic one.
Command:
  python -m experiments.compare_transformers \
    --config=configs/compare_transformers.py
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.name = 'smollm2-135m'  # of the file written; the same overwrites
  c.target = 'smollm2-135m'
  c.drafters = ('ngram', 'smollm2-135m-dspine')  # beside plain
  c.block = 16  # rows of a block
  # humaneval, arithmetic, or paths of .jsonl ({"turns": [...]}) or .txt files.
  c.prompts = 'humaneval,arithmetic'
  c.limit = 8  # prompts of each; 0: all
  c.max_new_tokens = 256
  c.dtype = 'bfloat16'
  c.results = 'runs'  # `results` holds what README quotes
  return c
