"""A toy world of 8 tokens where the law of the output can be enumerated.

The target is a tiny random transformer; the drafters draw from Markov tables
that have nothing to do with it, so that proposals are accepted and refused in
every slot.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import lax

from spinejax.decode import round as rounds
from spinejax.decode.schedule import Schedule
from spinejax.decode.state import init_state
from spinejax.drafters.base import (
  Dense,
  Drafter,
  Proposal,
  Sparse,
  no_cache,
  skip_features,
)
from spinejax.target.config import TargetConfig
from spinejax.target.model import (
  TargetParams,
  forward,
  init_cache,
  random_params,
  unembed,
)
from spinejax.verify.sampling import Sampling, gumbel, law
from tests.decode.toy import random_weights

V = 8
EMITTED = 3
PROMPT = (5, 2)
TARGET = TargetConfig('llama', V, 16, 1, 2, 1, 8, 16)


@dataclasses.dataclass(frozen=True)
class Setting:
  """How one group of requests samples and ends."""

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  cap: int = EMITTED


# Of each kind: the form of its law, and the case of that form. The last three
# break the contract of `Proposal`.
KINDS = {
  'one_hot': ('one_hot', 0),
  'unlabelled': ('one_hot', 1),  # a sample called certain, which is allowed
  'sparse': ('sparse', 0),
  'dense': ('dense', 0),
  'mislabelled': ('dense', 1),  # the best token, called a sample
  'tempered': ('dense', 2),  # labelled with another temperature
  'picky': ('dense', 3),  # left out if it turns out even
}


@dataclasses.dataclass(frozen=True)
class MarkovConfig:
  """Attributes:
  form: of the law: `one_hot`, `sparse` (3 ids) or `dense`.
  """

  form: str
  slots: int = 2
  taps: tuple[int, ...] = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MarkovParams:
  """Logits by slot and predecessor; traced cases share a compiled program.

  Attributes:
    case: see KINDS.
    gaps: leave a slot empty when the token before it is odd.
  """

  logits_SVV: jax.Array
  case: jax.Array
  gaps: jax.Array


def propose(cfg, params, view, cache, history, anchor_B, keys_B, sampling):
  """Each slot by the row of its predecessor."""
  del view, cache, history, sampling
  slots, confidence, previous_B = [], [], anchor_B
  for s in range(cfg.slots):
    logits_BV = params.logits_SVV[s][jnp.maximum(previous_B, 0)]
    token_B, ids_BN, probs_BN = _slot(cfg.form, params.case, logits_BV, keys_B)
    empty_B = params.gaps & (previous_B % 2 == 1)
    token_B = jnp.where(empty_B, -1, token_B)
    slots.append((token_B, ids_BN, probs_BN))
    # Far from the truth, which no law of the output may hang on.
    confidence.append((1.0 + previous_B % 4) / 5)
    previous_B = token_B
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, s)
  tokens_BS, ids_BSN, probs_BSN = (
    jnp.stack(x, axis=1) for x in zip(*slots, strict=True)
  )
  q = Dense(probs_BSN) if cfg.form == 'dense' else Sparse(ids_BSN, probs_BSN)
  return Proposal(tokens_BS, q, jnp.stack(confidence, axis=1))


def _slot(form, case, logits_BV, keys_B):
  """Token and law (ids, probabilities) of one slot."""
  best_B = jnp.argmax(logits_BV, axis=-1)
  noise_BV = gumbel(keys_B, (V,))
  drawn_B = jnp.argmax(logits_BV + noise_BV, axis=-1)
  if form == 'one_hot':
    token_B = jnp.where(case == 1, drawn_B, best_B)
    return token_B, token_B[:, None], jnp.ones((len(best_B), 1))
  if form == 'sparse':
    top_B3, ids_B3 = lax.top_k(logits_BV, 3)
    pick_B = jnp.argmax(top_B3 + noise_BV[:, :3], axis=-1)
    drawn_B = jnp.take_along_axis(ids_B3, pick_B[:, None], 1)[:, 0]
    return drawn_B, ids_B3, jax.nn.softmax(top_B3, axis=-1)
  token_B = jnp.where(case == 1, best_B, drawn_B)
  token_B = jnp.where((case == 3) & (drawn_B % 2 == 0), -1, token_B)
  label_BV = jax.nn.softmax(logits_BV / jnp.where(case == 2, 2.0, 1.0), axis=-1)
  return token_B, jnp.broadcast_to(jnp.arange(V), label_BV.shape), label_BV


@functools.cache
def target_params() -> TargetParams:
  """Random weights with larger logits than a fresh model gives: a law far
  from uniform."""
  params = random_weights(random_params, TARGET, seed=1)
  return dataclasses.replace(params, head_VD=params.head_VD * 1.5)


def markov(kind: str, gaps: bool = False) -> tuple[Drafter, MarkovParams]:
  """A drafter of the given kind, with random weights."""
  form, case = KINDS[kind]
  cfg = MarkovConfig(form)
  logits_SVV = np.random.default_rng(2).normal(size=(cfg.slots, V, V)) * 1.2
  params = MarkovParams(
    jnp.asarray(logits_SVV, jnp.float32), jnp.int32(case), jnp.bool(gaps)
  )
  return Drafter(form, cfg, no_cache, skip_features, propose), params


def run(drafter, params, state, sampling, limited, schedule):
  """Prefill and as many rounds as there are tokens to emit."""

  def body(_, state):
    ragged_B = (state.seed_B + state.length_B) % (drafter.slots + 1)
    limit_B = jnp.where(limited, ragged_B, drafter.slots)
    return rounds.step(
      TARGET, drafter, params, state, sampling, limit_B, schedule=schedule
    ).state

  state = rounds.prefill(TARGET, drafter, params, state, len(PROMPT) - 1)
  return lax.fori_loop(0, EMITTED, body, state)


_RUN = jax.jit(run, static_argnums=0)


def play(
  draft: tuple[Drafter, object],
  groups: tuple[Setting, ...],
  draws: int,
  stop_ids: tuple[int, int] = (-1, -1),
  limited: bool = False,
  patched: bool = False,
  schedule: Schedule | None = None,
) -> list[np.ndarray]:
  """Outcomes (see `outcome`) of the requests of every group, in equal parts.

  Args:
    draft: a drafter and its weights.
    draws: requests of all groups together.
    limited: let the proposals to verify differ by request and round.
    patched: trace the code anew.
    schedule: what to verify, packed.
  """
  drafter, params = draft
  part_B = np.arange(draws) % len(groups)

  def per_request(field, dtype):
    values = np.array([getattr(g, field) for g in groups], dtype)
    return jnp.asarray(values[part_B])

  sampling = Sampling(
    per_request('temperature', np.float32),
    per_request('top_k', np.int32),
    per_request('top_p', np.float32),
    greedy=False,
  )
  P = len(PROMPT)
  tokens_BT = np.zeros((draws, P + EMITTED + drafter.slots + 1), np.int32)
  tokens_BT[:, :P] = PROMPT
  state = init_state(
    TARGET,
    drafter,
    jnp.asarray(tokens_BT),
    jnp.full((draws,), P, jnp.int32),
    P + per_request('cap', np.int32),
    # Consecutive within a group, so that limits are ragged in each.
    jnp.asarray(np.arange(draws) // len(groups) + part_B * draws, jnp.uint32),
    jnp.asarray(stop_ids, jnp.int32),
  )
  program = jax.jit(lambda *a: run(drafter, *a)) if patched else (
    functools.partial(_RUN, drafter)
  )  # fmt: skip
  state = jax.device_get(
    program(
      rounds.Params(target_params(), params),
      state,
      sampling,
      jnp.bool(limited),
      schedule,
    )
  )
  assert state.done_B.all()
  tokens_BE = state.tokens_BT[:, P : P + EMITTED].copy()
  tokens_BE[np.arange(EMITTED) >= state.length_B[:, None] - P] = -1
  coded_B = outcome(tokens_BE)
  return [coded_B[part_B == g] for g in range(len(groups))]


def outcome(tokens_BE: np.ndarray) -> np.ndarray:
  """A number for each sequence of up to EMITTED tokens (-1: none)."""
  return (tokens_BE + 1) @ (V + 1) ** np.arange(EMITTED)


@functools.cache
def exact_law(setting: Setting, stop_ids: tuple[int, ...] = ()) -> np.ndarray:
  """Probability of every outcome under plain sampling, by enumeration."""
  params = target_params()
  sequences = list(itertools.product(range(V), repeat=EMITTED))
  tokens_BQ = jnp.asarray([(*PROMPT, *s[:-1]) for s in sequences])
  B, Q = tokens_BQ.shape
  out = jax.jit(forward, static_argnums=0)(
    TARGET, params, tokens_BQ, init_cache(TARGET, B, Q)
  )
  logits_BQV = unembed(out.hidden_BQD, params.head_VD)[:, len(PROMPT) - 1 :]
  sampling = Sampling.make(B, setting.temperature, setting.top_k, setting.top_p)
  p_BEV = np.asarray(law(logits_BQV, sampling), np.float64)
  total = np.zeros((V + 1) ** EMITTED)
  for b, tokens in enumerate(sequences):
    p = np.prod([p_BEV[b, e, t] for e, t in enumerate(tokens)])
    stops = [e + 1 for e, t in enumerate(tokens) if t in stop_ids]
    length = min([setting.cap, *stops])
    cut = np.where(np.arange(EMITTED) < length, tokens, -1)
    total[outcome(cut)] += p
  return total / total.sum()


def p_value(coded: np.ndarray, expected: np.ndarray) -> float:
  """Of the chi-square test that outcomes follow a law; 0 if one is
  impossible under it. Rare outcomes are pooled."""
  counts = np.bincount(coded, minlength=len(expected))
  if counts[expected == 0].any():
    return 0.0
  expected = expected * len(coded)
  rare = expected < 10
  if 0 < expected[rare].sum() < 10:  # too few for a cell of their own
    rare[np.argmin(np.where(rare, np.inf, expected))] = True
  observed = np.append(counts[~rare], counts[rare].sum())
  wanted = np.append(expected[~rare], expected[rare].sum())
  used = wanted > 0
  if used.sum() == 1:
    return 1.0
  return scipy.stats.chisquare(observed[used], wanted[used]).pvalue
