"""Five drafters and DSpine's ablations, trained alike on SmolLM2-135M.

Claim: with the same data, steps, seeds and number of proposals, how many
tokens a round each method gives on five benchmarks, each as a ratio to
DFlash's and DFlash2's with its interval.
Hardware: one H200, 2 to 3 minutes a run. Runs that are in the result file
already are not made again, so a study may be cut and taken up.
Numbers: results/study/smollm2-135m.json.
Command:
  python -m experiments.study --config=configs/study_smollm2.py
  python -m experiments.study --config=configs/study_smollm2.py:dflash,dspine
"""

import ml_collections

from configs import train_smollm2


def _runs():
  """Name -> method, seed, fields of the drafter, of the loss."""
  runs = {}
  for method in train_smollm2.METHODS:
    runs[method] = (method, 0, {}, {})
  for method in ('dflash', 'dflash2', 'dspine'):
    runs[f'{method}-seed1'] = (method, 1, {}, {})
  spine = {
    'no-refinement': ({'refine': False}, {}),
    'no-cosine': ({}, {'alignment_weight': 0.0}),
    'bidirectional': ({'causal': False}, {}),
    'rank192': ({'rank': 192}, {}),
    'ce': ({}, {'ce_end': 1.0}),
    'published-mix': ({}, {'ce_start': 0.1, 'ce_end': 0.1}),
    'token-ce': ({}, {'alignment': 'token_ce'}),
  }
  for name, (drafter, loss) in spine.items():
    runs[f'dspine-{name}'] = ('dspine', 0, drafter, loss)
  # DSpine's mix of losses for its rivals, and a DFlash2 of DSpine's size.
  mix = {'ce_start': 1.0, 'ce_end': 0.5}
  runs['dspark-mix'] = ('dspark', 0, {}, mix)
  runs['dflash2-mix'] = ('dflash2', 0, {}, mix)
  runs['dflash2-rank16'] = ('dflash2', 0, {'selector_rank': 16}, {})
  # Without injection, too: a causal DFlash with DSpine's loss of the pass.
  runs['dspine-no-injection'] = (
    'dflash', 0, {'causal': True}, mix | {'cumulative': True},
  )  # fmt: skip
  return runs


def get_config(names: str = ''):
  known = _runs()
  chosen = names.split(',') if names else list(known)
  for name in chosen:
    if name not in known:
      raise ValueError(f'run {name!r}, expected some of {", ".join(known)}')
  base = train_smollm2.get_config()
  c = ml_collections.ConfigDict()
  c.name = 'smollm2-135m'
  c.target = base.target
  c.dtype = base.dtype
  c.data = base.data
  c.batch, c.length = base.batch, base.length
  c.log = 100
  c.training = base.training
  c.training.steps = 1000
  c.drafter = ml_collections.ConfigDict(
    {k: base.drafter[k] for k in ('layers', 'block', 'mask_id', 'taps')}
  )
  runs = []
  for name in chosen:
    method, seed, drafter, loss = known[name]
    own, usual = train_smollm2.METHODS[method]
    runs.append(ml_collections.ConfigDict({
      'name': name, 'method': method, 'seed': seed,
      'drafter': own | drafter, 'loss': usual | loss,
    }))  # fmt: skip
  c.runs = tuple(runs)
  # humaneval, or files that experiments/prepare_prompts.py makes.
  files = ('gsm8k', 'mbpp', 'math500', 'vicuna80')
  c.prompts = ','.join(
    ['humaneval', *(f'data/prompts/{x}.jsonl' for x in files)]
  )
  c.limit = 128  # prompts of each set, the first ones
  c.max_new_tokens = 256
  c.evaluated = 592  # prompts decoded at a time
  c.temperatures = (0.0,)
  # The third is of DSpine's size.
  c.against = ('dflash', 'dflash2', 'dflash2-rank16')
  c.results = 'runs'  # `results` holds what README quotes
  return c
