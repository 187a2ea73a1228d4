"""SmolLM2-135M decoded plainly and with drafters, losslessly.

Claim: the trained DSpine emits the very tokens of plain decoding in about a
third of the target's passes. On a CPU that is a smaller gain in time: there a
round of 8 rows costs twice a plain step.
Hardware: any CPU with 2 cores; `:demo` 3 minutes, the default half an hour.
Numbers: 2.5 tokens a round on HumanEval at block 8 in float32, on the CPU;
3.6 at block 16 in bfloat16, on a GPU.
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
  c.name = f'smollm2_{variant}'  # of the files written; the same overwrites
  c.target = 'smollm2-135m'
  c.drafters = ('ngram', 'smollm2-135m-dspine')  # beside plain
  # Rows of a block. Verifying more of them costs more, on a CPU much more.
  # 0: those that are expected to be the fastest here, from the cost of a round
  # and the acceptance of a few prompts, both measured first (minutes on a CPU).
  c.block = 8
  # humaneval, arithmetic, or paths of .jsonl ({"turns": [...]}) or .txt files.
  c.prompts = 'humaneval,arithmetic'
  c.limit = 4 if variant == 'demo' else 20  # prompts of each; 0: all
  c.max_new_tokens = 64 if variant == 'demo' else 256
  c.dtype = 'float32'
  c.batch = 1
  # Devices: 'model=3' splits the model (this one has 3 groups of heads),
  # 'data=2' the batch, 'data=2,model=3' both; '' takes one device.
  c.mesh = ''
  c.temperature = 0.0
  c.top_k = 0
  c.top_p = 1.0
  c.seed = 0
  # Compare with plain decoding at the row count of a block, too: there the
  # tokens must be the same to the last one, near-ties included.
  c.same_rows = False
  c.show = 1 if variant == 'demo' else 0  # answers to print of each
  # Rounds of the first prompt that TensorBoard shows token by token, with what
  # a DSpine block holds; 0: none. And the profile of one round (pip install
  # xprof).
  c.inspect = 8
  c.profile = False
  c.results = 'runs'  # `results` holds what README quotes
  return c
