"""Plain decoding and drafters side by side, on the same prompts.

The speed of a machine drifts within minutes, so what is compared is
interleaved: every drafter decodes a prompt before any sees the next.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from spinejax.decode import acceptance
from spinejax.decode.generate import Completion, generate
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.request import Prompt, check_context, encode_prompts
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.report.stats import speedup
from spinejax.target.loading import Target
from spinejax.target.memory import check_memory
from spinejax.verify import audit
from spinejax.verify.sampling import Sampling

# Plain decoding whose forward pass has as many rows as a block: it agrees with
# a drafter to the last bit, so the comparison needs no tolerance.
SAME_ROWS = 'plain-same-rows'


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to decode; see `generate`. `batch` prompts are decoded at once."""

  max_new_tokens: int = 256
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  batch: int = 1

  def __post_init__(self):
    for field in ('max_new_tokens', 'batch'):
      if getattr(self, field) < 1:
        raise InputError(
          f'{field} = {getattr(self, field)}, expected at least 1'
        )
    if not 0 <= self.seed < 2**31:  # of later prompts it is larger
      raise InputError(f'seed = {self.seed}, expected 0..{2**31 - 1}')
    Sampling.make(1, self.temperature, self.top_k, self.top_p)


@dataclasses.dataclass(frozen=True)
class Run:
  """One drafter's answers to all prompts, and seconds for each batch."""

  completions: list[Completion]
  seconds: list[float]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All runs by drafter name, the prompts' ids, and warm-up seconds."""

  runs: dict[str, Run]
  prompts: list[list[int]]
  capacity: int
  warmup_s: float


def encode(
  target: Target, prompts: Sequence[Prompt], settings: Settings
) -> list[list[int]]:
  """Token ids of prompts, all of which leave room for an answer.

  Raises:
    InputError: as `generate`, but before any of the prompts is decoded.
  """
  ids = encode_prompts(target, prompts)
  for i, prompt in enumerate(ids):
    check_context(target, i, len(prompt), settings.max_new_tokens)
  return ids


def capacity_for(
  drafters: Mapping[str, DraftModel],
  ids: Sequence[Sequence[int]],
  settings: Settings,
) -> int:
  """Rows of caches that hold every prompt, its answer and a block."""
  widest = max(d.drafter.slots for d in drafters.values()) + 1
  longest = max(map(len, ids)) + settings.max_new_tokens
  return capacity_bucket(longest + widest)


def run(
  target: Target,
  drafters: Mapping[str, DraftModel],
  prompts: Sequence[Prompt],
  settings: Settings,
  progress: Callable[[str, float], None] = lambda name, share: None,
  capacity: int | None = None,
) -> Comparison:
  """Decodes every prompt with every drafter.

  One decoding each before the clock starts compiles and warms up.

  Args:
    drafters: by the name they have in tables.
    prompts: as for `generate`.
    progress: called with the drafter's name and the share of work done after
      each batch.
    capacity: rows of the caches; by default what these prompts need. Prompt
      sets that share one share their compiled programs.

  Raises:
    InputError: as `generate`, before anything is decoded.
  """
  ids = encode(target, prompts, settings)
  dtype = str(target.params.embed_VD.dtype)
  if settings.temperature == 0 and dtype not in audit.TIE:
    raise InputError(
      f'dtype = {dtype}, expected one of {", ".join(audit.TIE)}: for others it '
      'is not known how near a tie is'
    )
  if capacity is None:
    capacity = capacity_for(drafters, ids, settings)
  # The last batch is filled up, so that all have one shape.
  batch = min(settings.batch, len(ids))
  for model in drafters.values():
    model.check(target)
    check_memory(target, model, batch, capacity)
  filled = ids + ids[: -len(ids) % batch]

  def decode(model: DraftModel, first: int, tokens: int):
    return generate(
      target,
      model,
      filled[first : first + batch],
      max_new_tokens=tokens,
      temperature=settings.temperature,
      top_k=settings.top_k,
      top_p=settings.top_p,
      seed=settings.seed + first,
      capacity=capacity,
    )

  began = time.perf_counter()
  for model in drafters.values():
    decode(model, 0, 2)
  warmup_s = time.perf_counter() - began
  runs = {name: Run([], []) for name in drafters}
  for first in range(0, len(ids), batch):
    for name, model in drafters.items():
      done = decode(model, first, settings.max_new_tokens)
      runs[name].completions.extend(done.completions)
      runs[name].seconds.append(done.prefill_s + done.decode_s)
      finished = sum(len(r.seconds) for r in runs.values()) * batch
      progress(name, finished / (len(filled) * len(runs)))
  for one in runs.values():
    del one.completions[len(ids) :]
  return Comparison(runs, ids, capacity, warmup_s)


def rows(
  target: Target,
  done: Comparison,
  settings: Settings,
  dataset: str,
) -> list[dict]:
  """One flat metric row a drafter, with the keys of result files.

  Greedy runs are compared with plain decoding token by token (with SAME_ROWS
  if that was run): `exact` counts identical prompts, `ties` those that part
  at a near-tie of the target.
  """
  plain = done.runs['plain']
  reference = done.runs.get(SAME_ROWS, plain)
  table = []
  for name, one in done.runs.items():
    tokens = sum(len(c.tokens) for c in one.completions)
    row = {
      'target': target.name,
      'drafter': name,
      'dataset': dataset,
      'temperature': settings.temperature,
      'dtype': str(target.params.embed_VD.dtype),
      'batch': min(settings.batch, len(one.completions)),
      'max_new_tokens': settings.max_new_tokens,
      'seed': settings.seed,
      'tokens_per_s': tokens / sum(one.seconds),
    }
    row |= acceptance.counts(one.completions, settings.seed)
    # In float32 the reference would only be compared with itself.
    told = one is not reference or row['dtype'] != 'float32'
    if settings.temperature == 0 and told:
      row |= _exactness(target, done, reference, one)
    if name != 'plain':
      faster = speedup(plain.seconds, one.seconds, seed=settings.seed)
      row['speedup_vs_plain'] = faster.median.value
      row['speedup_low'] = faster.median.low
      row['speedup_high'] = faster.median.high
      row['speedup_total'] = faster.total
      if name != SAME_ROWS:
        row |= acceptance.by_position(one.completions)
    table.append(row)
  return table


def _exactness(target, done, reference: Run, one: Run) -> dict:
  found = audit.audit(
    target,
    done.prompts,
    [c.tokens for c in reference.completions],
    [c.tokens for c in one.completions],
    done.capacity,
  )
  return dataclasses.asdict(found)


def curves(table: Sequence[dict]) -> dict[str, np.ndarray]:
  """Acceptance by position of every drafter that has one, on every set."""
  several = len({row['dataset'] for row in table}) > 1
  return {
    f'{row["drafter"]}, {row["dataset"]}' if several else row['drafter']:
    np.asarray(row['acceptance_by_position'])
    for row in table
    if 'acceptance_by_position' in row
  }  # fmt: skip


def summary(table: Sequence[dict]) -> str:
  """One line: what the last drafter gave, and whether it was exact."""
  last = table[-1]['drafter']
  mine = [row for row in table if row['drafter'] == last]
  rounds = ' and '.join(
    f'{row["tokens_per_round"]:.2f} ({row["dataset"]})' for row in mine
  )
  line = f'{last}: {rounds} tokens a round'
  looping = sum(row.get('repetitive', 0) for row in mine)
  if looping:
    answers = sum(row['total'] for row in mine)
    line += f' ({looping} of {answers} answers end in a loop)'
  if 'exact' in mine[0]:
    exact, total = (sum(r[k] for r in mine) for k in ('exact', 'total'))
    ties, wrong = (sum(r[k] for r in mine) for k in ('ties', 'wrong'))
    line += (
      f'; exact {exact} = total {total}: the very tokens of plain decoding'
      if exact == total
      else (
        f'; exact {exact} of {total}, {ties} part at a near-tie of the target'
      )
    )
    if wrong:
      line += f', {wrong} WRONG'
  return line
