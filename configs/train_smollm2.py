"""A drafter for SmolLM2-135M, by any method.

Claim: 5 layers and blocks of 15 proposals, trained on some million tokens of
the target's own answers; how many tokens a round each method gives is in
results/study/smollm2-135m.json.
Hardware: one H200, about 3 minutes for 1300 steps, compilation and evaluation
included; `:toy` 3 minutes on two CPU cores, on what
configs/write_smollm2.py:toy writes.
Commands:
  python -m experiments.train_drafter --config=configs/train_smollm2.py
  python -m experiments.train_drafter --config=configs/train_smollm2.py:dflash
  python -m experiments.train_drafter --config=configs/train_smollm2.py:toy
  python -m experiments.train_drafter \
    --config=configs/train_smollm2.py:dflash2,toy
"""

import dataclasses

import ml_collections

from spinejax.train.objectives import OBJECTIVES
from spinejax.train.step import TrainConfig

# Method: fields of its own config, and of its loss, other than the defaults.
METHODS = {
  'dflash': ({'causal': False}, {}),
  'dflash2': ({'causal': False}, {}),
  # Slots of the anchor propose here, so 15 rows make 15 proposals.
  'domino': ({'causal': False, 'anchor_first': True, 'block': 15}, {}),
  'dspark': ({'causal': False, 'block': 15}, {}),
  # Cross-entropy first: the published mix, 0.9 of it L1, starts slowly.
  'dspine': (
    {'causal': True, 'rank': 384, 'message': 256},
    {'ce_start': 1.0, 'ce_end': 0.5},
  ),
}


def get_config(variant: str = 'dspine'):
  method = variant.removesuffix('toy').rstrip(',') or 'dspine'
  toy = variant.endswith('toy')
  if method not in METHODS:
    raise ValueError(
      f'variant {variant!r}, expected one of {", ".join(METHODS)}, alone or '
      'with ,toy'
    )
  own, loss = METHODS[method]
  c = ml_collections.ConfigDict()
  c.method = method
  c.target = 'smollm2-135m'
  c.dtype = 'float32' if toy else 'bfloat16'
  c.mesh = ''  # 'data=8' splits batches over 8 devices
  c.data = 'data/smollm2_toy' if toy else 'data/smollm2'
  c.out = f'runs/smollm2-135m-{variant.replace(",", "-")}'
  c.results = 'runs'  # the curves; `results` holds what README quotes
  c.batch = 2 if toy else 48  # sequences a step
  c.length = 128 if toy else 384  # tokens a sequence is padded to
  c.buckets = ()  # shorter lengths, for data of many lengths
  c.workers = 0  # processes that make batches ahead
  c.holdout = 4 if toy else 64  # sequences that are only evaluated on

  # All fields of spinejax.train.step.TrainConfig, which says what they mean.
  c.training = ml_collections.ConfigDict(
    dataclasses.asdict(TrainConfig(steps=100 if toy else 1300))
  )
  c.training.anchors = 8 if toy else 24  # blocks a sequence
  c.training.learning_rate = 1e-3

  c.every = ml_collections.ConfigDict()
  c.every.log = 10 if toy else 100
  c.every.evaluate = 50 if toy else 650
  c.every.save = 20 if toy else 250
  c.evaluate = ml_collections.ConfigDict()
  c.evaluate.max_new_tokens = 64 if toy else 128

  c.drafter = ml_collections.ConfigDict()
  c.drafter.layers = 2 if toy else 5
  c.drafter.block = 8 if toy else 16
  c.drafter.mask_id = 16  # <empty_output>, never written by the target
  c.drafter.taps = 5  # evenly spaced target layers
  c.drafter.update(own | ({'block': 7} if toy and 'block' in own else {}))
  # All fields of the method's options (spinejax/train/objectives).
  usual = dataclasses.asdict(OBJECTIVES[method].options())
  c.loss = ml_collections.ConfigDict(usual | loss)
  return c
