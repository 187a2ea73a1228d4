"""What is asked in a throughput run, of real text or of random weights; and
what an earlier one has of it."""

import dataclasses
import pathlib

import numpy as np

from experiments import common
from experiments import decode as decoding
from experiments.random_weights import random_drafter, random_target
from spinejax import report
from spinejax.decode import forced
from spinejax.decode.ticket import Request
from spinejax.drafters.base import DraftModel
from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.loading import plain_model
from spinejax.drafters.shape import drafter_config
from spinejax.errors import InputError
from spinejax.target.loading import Target, target_config
from spinejax.train.loop import refuse_changes

# Of a config, what may differ when a run is taken up again.
_FREE = (
  'name', 'results', 'concurrencies', 'rates', 'repeats',
  'prefix', 'acceptance', 'prompts', 'drafters', 'schedule',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Work:
  """What clients ask: prompts, and in synthetic runs what is accepted of each
  drafter's proposals."""

  name: str
  prompts: list[list[int]]
  survival: dict[str, np.ndarray] | None = None


def survival_of(config, name: str, slots: int) -> dict[str, np.ndarray]:
  """P(proposals 1..j are all accepted) of each drafter in a distribution.

  Raises:
    InputError: a drafter is missing, or it is no such distribution.
  """
  given, found = config.acceptance[name], {}
  if isinstance(given, str):
    rows = report.results.load(given)['metrics']
    given = {
      drafter: np.mean([
        row['acceptance_by_position'] for row in rows
        if row.get('drafter') == drafter and 'acceptance_by_position' in row
      ] or [[]], axis=0).tolist()
      for drafter in config.drafters
    }  # fmt: skip
  for drafter in config.drafters:
    value = given.get(drafter)
    if isinstance(value, int | float):
      value = forced.survival_of_mean(value, slots)
    array = np.array([] if value is None else value, np.float32)[:slots]
    falls = np.all(np.diff(array, prepend=1.0) <= 0) and np.all(array >= 0)
    if array.shape != (slots,) or not falls:
      raise InputError(
        f'acceptance.{name}: {drafter} has {value!r:.60}, expected a number or '
        f'at least {slots} probabilities that do not rise'
      )
    found[drafter] = array
  return found | {'plain': np.zeros(0, np.float32)}


def prepare(config) -> tuple[Target, dict[str, DraftModel], list[Work]]:
  """The target, the drafters by name, and all there is to ask."""
  dtype = common.dtype(config.dtype)
  if not config.synthetic:
    sets = decoding.prompt_sets(config)
    target, drafters = decoding.load(config, dtype)
    works = [
      Work(s.name, [target.tokenizer.encode_chat(t[:1]) for t in s.turns])
      for s in sets
    ]
    return target, drafters, works
  rng, cfg = np.random.default_rng(config.seed), target_config(config.target)
  shape = drafter_config(
    DSpineConfig, cfg, mask_id=0, causal=True, block=config.block,
    **config.drafter,
  )  # fmt: skip
  size = max(config.per_client * max(config.concurrencies), config.requests)
  prompts = rng.integers(0, cfg.vocab, (size, config.prompt_tokens)).tolist()
  works = [
    Work(name, prompts, survival_of(config, name, config.block - 1))
    for name in config.acceptance
  ]
  params = random_target(cfg, dtype)
  drafters = {'plain': plain_model()}
  for name in config.drafters:
    drafters[name] = random_drafter(name, shape, dtype)
  name = pathlib.Path(config.target).name
  return Target(name, cfg, params, None, None), drafters, works


def requests_of(config, prompts, count: int, new: int = 0) -> list[Request]:
  """So many requests, which take the prompts in turn."""
  return [
    Request(
      prompts[i % len(prompts)], new or config.max_new_tokens,
      config.temperature, config.top_k, config.top_p, config.seed + i,
    )
    for i in range(count)
  ]  # fmt: skip


def resumed(config, path: pathlib.Path) -> list[dict]:
  """Rows that are there already.

  Raises:
    InputError: they were made with other settings, so could not be compared.
  """
  if not path.exists():
    return []
  result = report.results.load(path)
  settings = report.results.portable(config.to_dict())
  before, now = (
    {key: value for key, value in x.items() if key not in _FREE}
    for x in (result['config'], settings)
  )
  rows = [row for row in result['metrics'] if 'repeats' not in row]
  for into, whole in ((before, result['config']), (now, settings)):
    into |= _measured(whole, rows, len(result['config']['drafters']))
  refuse_changes(before, now, f'{path} was begun')
  return rows


def _measured(config: dict, rows: list[dict], drafters: int) -> dict:
  """Of what may be added to, the settings that these rows were made with."""
  names = {row.get('dataset') for row in rows}
  specs = config['prompts'].split(',')
  found = {
    'acceptance': {
      name: value for name, value in config['acceptance'].items()
      if name in names
    },
    'prompts': [x for x in specs if pathlib.Path(x).stem in names],
  }  # fmt: skip
  if not config['synthetic']:  # what they are called hangs on their order
    found['drafters'] = list(config['drafters'])[:drafters]
  if any(row['load'] == 'prefix' for row in rows):
    found['prefix'] = config['prefix'] | {'repeats': None}
  return found
