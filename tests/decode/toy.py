"""Tiny random targets and test-only drafters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.decode.generate import Generation, generate
from spinejax.drafters import backbone
from spinejax.drafters.base import (
  Drafter,
  DraftModel,
  Proposal,
  no_cache,
  skip_features,
)
from spinejax.drafters.codes import fit_basis, token_codes
from spinejax.drafters.dflash import dflash
from spinejax.drafters.dflash2 import DFlash2Config, dflash2, random_dflash2
from spinejax.drafters.domino import DominoConfig, domino, random_domino
from spinejax.drafters.dspark import (
  HEADS,
  DSparkConfig,
  dspark,
  random_dspark,
)
from spinejax.drafters.dspine import (
  DSpineConfig,
  DSpineParams,
  Injection,
  dspine,
)
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target
from spinejax.target.model import random_params

V = 61
SLOTS = 4
NEW = 24
STOPS = (V - 1, V - 1)
SHAPE = dict(vocab=V, width=32, heads=4, kv_heads=2, head_dim=8, ffn=48)
FAMILIES = {
  'llama': dict(tied=True),
  'qwen2': dict(qkv_bias=True),
  'qwen3': dict(qk_norm=True),
}
# Seeds whose greedy answers have many different tokens.
SEEDS = {'llama': 4, 'qwen2': 6, 'qwen3': 4}


class Ids:
  """In place of a tokenizer: text is ids in decimal."""

  stop_ids = STOPS

  def decode(self, ids):
    return ' '.join(str(int(i)) for i in ids)

  def encode_chat(self, turns):
    return [int(i) for turn in turns for i in turn.split()]


@functools.cache
def target(family: str = 'qwen3') -> Target:
  """A target of two layers with random weights."""
  cfg = TargetConfig(
    family, layers=2, max_position=512, **SHAPE, **FAMILIES[family]
  )
  params = random_weights(random_params, cfg, SEEDS[family])
  # Sublayers that count for more: answers that hang on the whole context.
  layers = tuple(
    dataclasses.replace(x, out_DX=3 * x.out_DX, down_DF=3 * x.down_DF)
    for x in params.layers
  )
  # The stop token is never the best one.
  head_VD = params.head_VD.at[V - 1].set(0.0)
  params = dataclasses.replace(
    params,
    layers=layers,
    head_VD=head_VD,
    embed_VD=head_VD if cfg.tied else params.embed_VD,
  )
  return Target(f'toy-{family}', cfg, params, Ids(), np.asarray(params.head_VD))


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
  """Random prompts of the given lengths, without the stop token."""
  rng = np.random.default_rng(seed)
  return [rng.integers(0, V - 1, n).tolist() for n in lengths]


def answers(of: Target, draft: DraftModel, prompts, **settings):
  """The tokens that `decode` emits for each prompt, as lists."""
  return tokens_of(decode(of, draft, prompts, **settings))


def decode(of: Target, draft: DraftModel, prompts, **settings) -> Generation:
  """`generate` with the capacity and number of stop tokens that all tests
  share, and with them the compiled programs."""
  shared = dict(capacity=256, max_new_tokens=NEW, stop_ids=STOPS)
  return generate(of, draft, prompts, **(shared | settings))


def tokens_of(done: Generation) -> list[list[int]]:
  """Its tokens, as lists."""
  return [c.tokens.tolist() for c in done.completions]


def _block_config(kind, **extra):
  shape = SHAPE | dict(layers=2, block=2, mask_id=7, taps=(-1, 0))
  return kind(**shape, **extra).of_rows(SLOTS + 1)


@functools.cache
def dflash_model() -> DraftModel:
  """DFlash with random weights."""
  cfg = _block_config(backbone.BackboneConfig)
  return DraftModel(dflash(cfg), random_backbone(cfg, seed=4))


@functools.cache
def dspine_model(family: str = 'qwen3') -> DraftModel:
  """DSpine with random weights."""
  cfg = _block_config(DSpineConfig, rank=12, message=10, candidates=4)
  params = random_dspine(cfg, target(family).head_VD, seed=5)
  return DraftModel(dspine(cfg), params)


@functools.cache
def other_model(name: str) -> DraftModel:
  """One of the other block drafters, with random weights."""
  kind, make, of, extra = {
    'dflash2': (DFlash2Config, random_dflash2, dflash2,
      dict(conv_group=8, selector_rank=6, candidates=4)),
    'domino': (DominoConfig, random_domino, domino,
      dict(emb_dim=6, gru_dim=8, anchor_first=True)),
    'domino-unshifted': (DominoConfig, random_domino, domino,
      dict(emb_dim=6, gru_dim=8)),
    **{
      f'dspark-{head}': (DSparkConfig, random_dspark, dspark,
        dict(markov_rank=6, markov_head=head))
      for head in HEADS
    },
    'dflash-anchor-first': (backbone.BackboneConfig, backbone.random_backbone,
      dflash, dict(anchor_first=True)),
  }[name]  # fmt: skip
  cfg = _block_config(kind, **extra)
  return DraftModel(of(cfg), random_weights(make, cfg, seed=6))


def random_weights(make, cfg, seed: int):
  """What `make(cfg, key)` would make, drawn with NumPy: nothing to compile."""
  rng = np.random.default_rng(seed)

  def draw(x):
    if x.ndim == 1:  # scales of norms
      return jnp.ones(x.shape, x.dtype)
    fan_in = x.shape[-1]
    return jnp.asarray(rng.normal(size=x.shape) * fan_in**-0.5, x.dtype)

  shapes = jax.eval_shape(lambda key: make(cfg, key), jax.random.key(0))
  return jax.tree.map(draw, shapes)


def random_backbone(cfg, seed: int) -> backbone.BackboneParams:
  """Random weights of the draft layers."""
  return random_weights(backbone.random_backbone, cfg, seed)


def random_dspine(cfg: DSpineConfig, head_VD, seed: int) -> DSpineParams:
  """Random weights, also where training starts at zero."""
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) * shape[-1] ** -0.5, jnp.float32)

  injection = Injection(
    readouts_RD=tuple(normal(cfg.rank, cfg.width) for _ in range(cfg.layers)),
    writes_DM=tuple(normal(cfg.width, cfg.message) for _ in range(cfg.layers)),
    message_MR=normal(cfg.message, cfg.rank),
    receiver_MR=normal(cfg.message, cfg.rank),
    predecessor_MR=normal(cfg.message, cfg.rank),
    bias_M=normal(cfg.message),
  )
  head_VD = np.asarray(head_VD)
  codes_VR = token_codes(head_VD, fit_basis(head_VD, cfg.rank))
  base = random_backbone(cfg, seed)
  return DSpineParams(base, injection, jnp.asarray(codes_VR, jnp.float32))


@dataclasses.dataclass(frozen=True)
class OracleConfig:
  """Attributes:
  wrong_every: positions that are multiples of it are proposed wrongly.
  gap_every: at multiples of it nothing is proposed.
  """

  slots: int = SLOTS
  wrong_every: int = 7
  gap_every: int = 17
  taps: tuple[int, ...] = ()


def foresee(cfg, known_BT, view, cache, history, anchor_B, keys_B, sampling):
  """Reads proposals off a table of whole answers [B, T]."""
  at_BS = history.length_B[:, None] + jnp.arange(cfg.slots)
  last = known_BT.shape[1] - 1
  tokens_BS = jnp.take_along_axis(known_BT, jnp.minimum(at_BS, last), axis=1)
  wrong_BS = (tokens_BS + 1) % view.embed_VD.shape[0]
  tokens_BS = jnp.where(at_BS % cfg.wrong_every == 0, wrong_BS, tokens_BS)
  gap_BS = (at_BS % cfg.gap_every == 0) | (at_BS > last)
  return Proposal.certain(jnp.where(gap_BS, -1, tokens_BS))


def oracle_model(prompts, answers, **config) -> DraftModel:
  """Proposes known answers with errors in known places."""
  known = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
  known_BT = np.zeros((len(known), 256), np.int32)
  for row, tokens in zip(known_BT, known, strict=True):
    row[: len(tokens)] = tokens
  return DraftModel(
    Drafter('oracle', OracleConfig(**config), no_cache, skip_features, foresee),
    jnp.asarray(known_BT),
  )
