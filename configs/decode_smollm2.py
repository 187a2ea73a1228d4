"""SmolLM2-135M decoded plainly and with drafters, losslessly.

Claim: the trained DSpine emits the same tokens as plain decoding in a third
of the target's forward passes (3.6 tokens a round on HumanEval, block 16).
Hardware: any CPU with 2 cores; `:demo` 2 minutes, the default 20 minutes.
Numbers: results/decode/.
Commands:
  python -m experiments.decode --config=configs/decode_smollm2.py:demo
  python -m experiments.decode --config=configs/decode_smollm2.py \
    --config.prompts=my_prompts.jsonl
"""

import ml_collections


def get_config(variant: str = 'full'):
  if variant not in ('full', 'demo'):
    raise ValueError(f'variant {variant!r}, expected full or demo')
  c = ml_collections.ConfigDict()
  c.name = f'smollm2_{variant}'
  c.target = 'smollm2-135m'
  c.drafters = ('ngram', 'smollm2-135m-dspine')  # beside plain
  # Rows of a block. Verifying more of them costs more, on a CPU much more.
  c.block = 8
  # humaneval, arithmetic, or paths of .jsonl ({"turns": [...]}) or .txt files.
  c.prompts = 'humaneval,arithmetic'
  c.limit = 4 if variant == 'demo' else 20  # prompts of each; 0: all
  c.max_new_tokens = 96 if variant == 'demo' else 256
  c.dtype = 'float32'
  c.batch = 1
  c.temperature = 0.0
  c.top_k = 0
  c.top_p = 1.0
  c.seed = 0
  # Compare with plain decoding at the row count of a block, too: there the
  # tokens must be the same to the last one, near-ties included.
  c.same_rows = False
  c.show = 1 if variant == 'demo' else 0  # answers to print of each
  c.results = 'runs' if variant == 'demo' else 'results'
  c.tensorboard = 'runs'
  return c
