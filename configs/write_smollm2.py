"""Training data that SmolLM2-135M writes itself.

Claim: a few million tokens of the target's own answers, over open chat,
code and arithmetic, train a drafter for it.
Hardware: one H200, minutes; `:toy` on a CPU: a dozen sequences in a minute.
Commands:
  python -m experiments.write_data --config=configs/write_smollm2.py
  python -m experiments.write_data --config=configs/write_smollm2.py:toy
  python -m experiments.write_data --config=configs/write_smollm2.py \
    --config.prompts=my_prompts.jsonl --config.out=data/mine
"""

import ml_collections


def get_config(variant: str = 'full'):
  if variant not in ('full', 'toy'):
    raise ValueError(f'variant {variant!r}, expected full or toy')
  toy = variant == 'toy'
  c = ml_collections.ConfigDict()
  c.target = 'smollm2-135m'
  c.dtype = 'float32' if toy else 'bfloat16'
  # Devices: 'model=3' splits the model, 'data=2' the batch; '' takes one.
  c.mesh = ''
  c.out = 'data/smollm2_toy' if toy else 'data/smollm2'
  c.seed = 0
  c.length = 128 if toy else 384  # tokens of a sequence
  c.max_prompt = 96 if toy else 224  # longer prompts are dropped
  c.max_turn = 64 if toy else 160  # tokens of a sampled user turn
  c.batch = 8 if toy else 2048
  c.shard = 16 if toy else 16384  # prompts; a run goes on at a whole shard
  # User turns to open by kind; see spinejax/train/self_data.py.
  c.openings = ml_collections.ConfigDict(
    {'chat': 8192, 'code': 14336, 'problem': 4096, 'like_given': 0}
  )
  if toy:
    c.openings.update({'chat': 8, 'code': 16, 'problem': 8})
  c.turn_temperature = 1.0
  c.turn_top_k = 64
  # Prompts to answer as given: JSONL of {"turns": [...]}, or '' for none.
  # Their first words are the openings of the kind `like_given`.
  c.prompts = ''
  c.answer_prompts = True  # False: only use their first words
  c.temperature = 0.0  # of answers; 0 is greedy
  c.top_k = 0
  return c
