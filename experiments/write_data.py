"""Lets a target write the data its drafter is trained on."""

import time

import numpy as np
from absl import logging

from experiments import common
from spinejax.decode.request import whole
from spinejax.errors import InputError
from spinejax.prompts import read_prompts
from spinejax.target.loading import load_target
from spinejax.train import self_data

# What a sampled user turn starts with. The second is the wording in which
# HumanEval is asked; the functions behind it are the target's inventions.
OPENINGS = {
  'chat': ('',),
  'code': (
    'Write a solution to the following problem and make sure that it passes '
    'the tests:\n```python\n',
    'Write a Python function',
    'Implement a function',
    'Write a Python program',
  ),
  'problem': (
    'A', 'If', 'How many', 'There are', 'John', 'Maria', 'In a', 'Tom',
    'Calculate', 'A store', 'Each', 'Sarah',
  ),
}  # fmt: skip
_REASON = (
  '\nPlease reason step by step, and put your final answer within \\boxed{}.'
)
SUFFIX = {'problem': _REASON, 'like_given': _REASON}


def check(config) -> list[str]:
  """The prompts to answer; refuses what can be seen before loading."""
  common.positive(config, 'length', 'max_prompt', 'max_turn', 'batch')
  whole('seed', config.seed, 0, 2**31)
  # Answers of less than 8 tokens are dropped.
  if config.length < config.max_prompt + 8:
    raise InputError(
      f'length = {config.length}, expected at least 8 more than max_prompt = '
      f'{config.max_prompt}'
    )
  batches = dict(config.openings)
  for kind, count in batches.items():
    if count < 0:
      raise InputError(f'openings.{kind} = {count}, expected at least 0')
  if batches.get('like_given') and not config.prompts:
    raise InputError('openings.like_given needs prompts, a file')
  given = []
  if config.prompts:
    given = [turns[0] for turns in read_prompts(config.prompts).turns]
  if not any(batches.values()) and not (given and config.answer_prompts):
    raise InputError('openings are all 0, and there are no prompts to answer')
  return given


def main(config):
  given = check(config)
  dtype, out = common.dtype(config.dtype), common.folder(config.out)
  target = load_target(config.target, dtype)
  if config.length > target.cfg.max_position:
    raise InputError(
      f'length = {config.length} exceeds the context of '
      f'{target.cfg.max_position} that {target.name} was trained for'
    )
  openings = dict(OPENINGS)
  if given:
    openings['like_given'] = [' '.join(t.split()[:5]) for t in given]
  used = [p for k, n in config.openings.items() if n for p in openings[k]]
  opened = self_data.encode_openings(target, used)
  need = max(map(len, opened), default=0) + config.max_turn + 1
  if need > config.capacity:
    raise InputError(
      f'capacity = {config.capacity}, expected at least {need}: the longest '
      f'opening and max_turn = {config.max_turn}'
    )
  began, parts, counts = time.time(), [], {}

  waiting = []  # prompts, answered in full batches: one compiled program

  def ask(kind, turns, everything=False):
    got = self_data.encode_turns(target, turns, config.max_prompt)
    counts[kind] = counts.get(kind, 0) + len(got)
    waiting.extend(got)
    while len(waiting) >= config.batch or (everything and waiting):
      parts.append(
        self_data.answer(target, waiting[: config.batch], config.length)
      )
      del waiting[: config.batch]
    logging.info('prompts: %s, %.0f s', counts, time.time() - began)

  if given and config.answer_prompts:
    ask('given', given)
  kinds = [k for k, n in config.openings.items() for _ in range(n)]
  rng = np.random.default_rng(config.seed)
  order = rng.permutation(len(kinds))
  for number, kind in enumerate(kinds[i] for i in order):
    if config.seconds and time.time() - began > config.seconds:
      logging.info('stopped by the time limit after %d batches', number)
      break
    starts = openings[kind]
    turns = self_data.write_user_turns(
      target,
      [starts[rng.integers(len(starts))] for _ in range(config.batch)],
      seed=config.seed + number * config.batch,
      max_tokens=config.max_turn,
      capacity=config.capacity,
    )
    ask(kind, [t + SUFFIX.get(kind, '') for t in turns])
  ask('', [], everything=True)
  data = self_data.join(parts)
  manifest = {
    'target': target.name,
    'head_hash': target.head_hash,
    'sequences': len(data.length_N),
    'tokens': int(data.length_N.sum()),
    'prompts_by_kind': {k: n for k, n in counts.items() if n},
    'seconds': round(time.time() - began, 1),
    'config': config.to_dict(),
  }
  self_data.save(data, out / 'sequences.npz', manifest)
  print(f'{manifest["sequences"]} sequences, {manifest["tokens"]} tokens')
  print(out / 'manifest.json')


if __name__ == '__main__':
  common.run(main)
