"""A tiny target, what it wrote, and a drafter's config for it."""

import dataclasses
import functools

import jax
import numpy as np

from spinejax.decode.generate import Completion, generate
from spinejax.drafters.base import DraftModel
from spinejax.drafters.codes import fit_basis, token_codes
from spinejax.drafters.dspine import DSpineParams, dspine
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import random_params
from spinejax.train.fit import drafter_config
from spinejax.train.self_data import Sequences
from spinejax.train.step import (
  TrainConfig,
  TrainState,
  init_train_state,
  to_params,
)
from tests.decode.toy import Ids, prompts

V, LENGTH, COUNT = 61, 40, 8
CFG = TargetConfig(
  'llama', vocab=V, width=32, layers=6, heads=4, kv_heads=2, head_dim=8,
  ffn=48, max_position=256,
)  # fmt: skip
DRAFT = drafter_config(
  CFG, layers=2, block=5, mask_id=7, taps=3, rank=12, message=10
)
TRAIN = TrainConfig(steps=60, anchors=6, learning_rate=2e-2)
PROMPTS = prompts(*range(3, 3 + COUNT))


@functools.cache
def target() -> Target:
  params = jax.jit(random_params, static_argnums=0)(CFG, jax.random.key(1))
  # Sublayers that count for more: answers that hang on the whole context.
  layers = tuple(
    dataclasses.replace(x, out_DX=3 * x.out_DX, down_DF=3 * x.down_DF)
    for x in params.layers
  )
  params = dataclasses.replace(params, layers=layers)
  return Target('tiny', CFG, params, Ids(), np.asarray(params.head_VD))


def decode(params: DSpineParams) -> list[Completion]:
  """Greedy answers to `PROMPTS` that fill `LENGTH`, speculatively."""
  return generate(
    target(),
    DraftModel(dspine(DRAFT), params),
    PROMPTS,
    max_new_tokens=[LENGTH - len(p) for p in PROMPTS],
    stop_ids=(),
    capacity=128,
  ).completions


def fresh_state(train: TrainConfig = TRAIN) -> TrainState:
  basis = fit_basis(target().head_VD, DRAFT.rank)
  codes_VR = token_codes(target().head_VD, basis)
  return init_train_state(train, DRAFT, basis.axes_DR, codes_VR)


@functools.cache
def untrained() -> list[Completion]:
  return decode(to_params(fresh_state()))


@functools.cache
def data() -> Sequences:
  """One batch: the target's answers to `PROMPTS`."""
  rows = [[*p, *c.tokens] for p, c in zip(PROMPTS, untrained(), strict=True)]
  return Sequences(
    np.array(rows, np.int32),
    np.array([len(p) for p in PROMPTS]),
    np.full(COUNT, LENGTH),
  )


def random_data() -> Sequences:
  """Tokens that nobody wrote, where it does not matter what they are."""
  rng = np.random.default_rng(0)
  return Sequences(
    rng.integers(0, V, (COUNT, LENGTH), np.int32),
    np.arange(3, 3 + COUNT),
    np.full(COUNT, LENGTH),
  )
