"""Confidences made into probabilities: sequential temperature scaling.

What a drafter says of its slots ranks them, but is seldom a probability, and
the schedule multiplies it along the block and weighs it against costs. So each
slot gets a temperature, c -> sigmoid(logit(c) / T_j), fitted left to right: T_j
makes the survival of the first j proposals, prod_{i<=j} c_i, as well calibrated
as can be, with the temperatures before it as they are (DSpark, arXiv
2607.05147, section 3.2). A temperature keeps the order of confidences, so what
it can mend is how sure a slot is, not what it is sure of.

  train, held_out = (observe(target, draft, some, 32) for some in halves)
  temperature_S = fit(*train)
  error(*held_out, temperature_S)  # beside error(*held_out)
  Schedule.fill(budget, temperature_S)
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.decode.generate import start
from spinejax.decode.loop import prefill_chunk, watch_rounds
from spinejax.decode.request import Prompt, encode_prompts, whole
from spinejax.decode.round import Params
from spinejax.decode.schedule import calibrated
from spinejax.drafters.base import DraftModel
from spinejax.errors import InputError
from spinejax.sharding import shard
from spinejax.target.loading import Target
from spinejax.target.memory import PREFILL_CHUNK
from spinejax.verify.sampling import Sampling

# Temperatures that are tried, from the most harmless on, and bins of an error.
_GRID = sorted(np.geomspace(0.1, 10, 121), key=lambda t: abs(np.log(t)))
_BINS = 10
# Rounds in a call.
_ROUNDS = 16


def observe(
  target: Target,
  draft: DraftModel,
  prompts: Sequence[Prompt],
  batch: int,
  *,
  max_new_tokens: int = 256,
  temperature: float = 0.0,
  seed: int = 0,
  capacity: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """What a drafter says of its proposals on some prompts, and what comes.

  Args:
    prompts, max_new_tokens, temperature, seed, capacity: as for `generate`.
    batch: prompts decoded at once; the last batch is filled up.

  Returns:
    Confidences [rounds, S] and proposals accepted [rounds], of the rounds of
    all requests, every proposal having been verified.

  Raises:
    InputError: as `generate`.
  """
  draft.check(target)
  whole('batch', batch, 1, 2**31 - 1)
  ids = encode_prompts(target, prompts)
  params = Params(target.params, draft.params)
  sampling = shard(Sampling.make(batch, temperature), target.mesh)
  confidence, accepted = [], []
  for first in range(0, len(ids), batch):
    some = [ids[i % len(ids)] for i in range(first, first + batch)]
    state = start(
      target, draft, some, max_new_tokens, seed + first, capacity=capacity
    )
    for _ in range(-(-(max(map(len, some)) - 1) // PREFILL_CHUNK)):
      state = prefill_chunk(target.cfg, draft.drafter, params, state)
    while not state.done_B.all():
      state, seen = watch_rounds(
        target.cfg, draft.drafter, params, state, sampling, _ROUNDS
      )
      seen = jax.device_get(seen)
      confidence.append(seen.confidence[seen.live])
      accepted.append(seen.accepted[seen.live])
  return np.concatenate(confidence), np.concatenate(accepted)


def expected_error(predicted: np.ndarray, happened: np.ndarray) -> float:
  """Expected calibration error: in ten equal bins of what was predicted, the
  distance of its mean from the share that happened, weighed by size."""
  at = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
  gap = np.bincount(at, predicted - happened, minlength=_BINS)
  return float(np.abs(gap).sum() / len(predicted))


def error(
  confidence_BS: np.ndarray,
  accepted_B: np.ndarray,
  temperature_S: Sequence[float] | None = None,
) -> list[float]:
  """Calibration error of the survival of 1, 2, ... proposals, by slot.

  Args:
    confidence_BS, accepted_B: of B rounds; see `observe`.
    temperature_S: calibration; None takes confidences as they are.

  Raises:
    InputError: the arrays do not fit together.
  """
  _check(confidence_BS, accepted_B)
  if temperature_S is not None:
    confidence_BS = _calibrated(confidence_BS, temperature_S)
  survival_BS = np.cumprod(confidence_BS, axis=1)
  return [
    expected_error(survival_B, accepted_B > slot)
    for slot, survival_B in enumerate(survival_BS.T)
  ]


def fit(confidence_BS: np.ndarray, accepted_B: np.ndarray) -> list[float]:
  """The temperature of each slot, by a search from the first slot on.

  Raises:
    InputError: the arrays do not fit together.
  """
  _check(confidence_BS, accepted_B)
  before_B, found = np.ones(len(accepted_B)), []
  for slot, confidence_B in enumerate(confidence_BS.T):
    tried = _calibrated(confidence_B[:, None], _GRID) * before_B[:, None]
    errors = [expected_error(each_B, accepted_B > slot) for each_B in tried.T]
    best = int(np.argmin(errors))
    before_B = tried[:, best]
    found.append(float(_GRID[best]))
  return found


def _calibrated(confidence, temperature) -> np.ndarray:
  """As the schedule does it."""
  with jax.default_device(jax.local_devices(backend='cpu')[0]):
    y = calibrated(jnp.asarray(confidence), jnp.asarray(temperature))
  return np.asarray(y)


def _check(confidence_BS, accepted_B) -> None:
  if np.ndim(confidence_BS) != 2 or not len(confidence_BS):
    raise InputError(
      f'confidence_BS has shape {np.shape(confidence_BS)}, expected rounds by '
      'slots'
    )
  if np.shape(accepted_B) != (len(confidence_BS),):
    raise InputError(
      f'accepted_B has shape {np.shape(accepted_B)}, expected '
      f'({len(confidence_BS)},) as there are rounds'
    )
