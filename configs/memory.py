"""Memory that a target and a DSpine drafter will need; nothing is loaded.

Claim: *modelled*, from the shapes; weights, caches and logits.
Hardware: any; seconds.
Command:
  python -m experiments.memory --config=configs/memory.py \
    --config.target=qwen3-8b --config.batch=8
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.target = 'qwen3-8b'  # a preset, a packaged name, or a path
  c.dtype = 'bfloat16'
  c.batch = 1
  c.context = 4096  # tokens of prompt and answer
  c.drafter = ml_collections.ConfigDict()
  c.drafter.layers = 5
  c.drafter.block = 16
  c.drafter.mask_id = 0
  c.drafter.taps = 5
  c.drafter.rank = 1024
  c.drafter.message = 512
  return c
