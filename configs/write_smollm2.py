"""Training data that SmolLM2-135M writes itself.

Claim: a few million tokens of the target's own answers, over open chat,
code and arithmetic, train a drafter for it.
Hardware: one H200, about 4 minutes for 22 K sequences. On a CPU: hours.
Command:
  python -m experiments.write_data --config=configs/write_smollm2.py
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.target = 'smollm2-135m'
  c.dtype = 'bfloat16'
  c.out = 'data/smollm2'
  c.seed = 0
  c.length = 384  # tokens of a sequence
  c.max_prompt = 224  # longer prompts are dropped
  c.max_turn = 160  # tokens of a sampled user turn
  c.batch = 1024
  c.capacity = 512
  c.seconds = 0.0  # stop starting batches after this long; 0: no limit
  # Batches by how the user turn opens; see experiments/write_data.py.
  c.openings = ml_collections.ConfigDict(
    {'chat': 8, 'code': 14, 'problem': 4, 'like_given': 0}
  )
  # Prompts to answer as given: JSONL of {"turns": [...]}, or '' for none.
  # Their first words are the openings of the kind `like_given`.
  c.prompts = ''
  c.answer_prompts = True  # False: only use their first words
  return c
