"""Recorded runs of the published reference implementations, made handy."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from scipy import stats

from spinejax.drafters import (
  DraftModel,
  backbone,
  dflash,
  dflash2,
  dspine,
  factored,
  load_drafter,
  write_bundle,
)
from spinejax.drafters.backbone import Place
from spinejax.drafters.base import DraftCache, History, TargetView
from spinejax.drafters.codes import Basis
from spinejax.target import Target, TargetConfig, TargetParams
from spinejax.verify.sampling import Sampling, Stream, round_keys

static_jit = functools.partial(jax.jit, static_argnums=0)
ATOL = 5e-5
CARD = {'target': 'tiny', 'steps': 12, 'tokens_per_round': {'chat': 2.5}}
GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'drafters'


@dataclasses.dataclass(frozen=True)
class Run:
  """A drafter, the tables of its target, and what the reference computed."""

  path: pathlib.Path
  target: Target
  model: DraftModel

  @property
  def cfg(self):
    return self.model.drafter.cfg

  @property
  def params(self):
    return self.model.params

  @property
  def embed_VD(self) -> jax.Array:
    return self.target.params.embed_VD

  @property
  def head_VD(self) -> jax.Array:
    return self.target.params.head_VD

  def recorded(self, file: str) -> dict[str, np.ndarray]:
    return load_file(self.path / f'{file}.safetensors')

  def cache(self, features_BTP=None, capacity: int = 32) -> DraftCache:
    """An empty cache, or one that holds context rows."""
    batch = 1 if features_BTP is None else len(features_BTP)
    cache = self.model.drafter.init_cache(
      self.cfg, batch, capacity, jnp.float32
    )
    return cache if features_BTP is None else self.extend(cache, features_BTP)

  def extend(self, cache, features_BTP, padding: float = 0.0) -> DraftCache:
    """Takes in context rows, padded to one shape so that it compiles once."""
    B, rows, P = features_BTP.shape
    padded = np.full((B, 24, P), padding, np.float32)
    padded[:, :rows] = features_BTP
    return _extend(
      self.model.drafter, self.params, cache, padded, jnp.full((B,), rows)
    )

  def propose(self, cache, anchor_B, start: int, sampling=None, keys_B=None):
    """Proposals behind an anchor at position `start`."""
    B = len(anchor_B)
    return _propose(
      self.model.drafter,
      self.params,
      TargetView(self.embed_VD, self.head_VD),
      cache,
      History(jnp.zeros((B, 64), jnp.int32), jnp.full((B,), start + 1)),
      jnp.asarray(anchor_B, jnp.int32),
      keys_B,
      Sampling.make(B) if sampling is None else sampling,
    )


@dataclasses.dataclass(frozen=True)
class Trained:
  """A drafter of which everything is known that a bundle wants."""

  model: DraftModel
  basis: Basis
  head_hash: str
  codes_hash: str

  def write(self, path, card=CARD, **options):
    write_bundle(
      path,
      self.model,
      self.basis,
      self.head_hash,
      self.codes_hash,
      card,
      **options,
    )
    return path


@static_jit
def _extend(drafter, *arguments):
  return drafter.extend(drafter.cfg, *arguments)


@static_jit
def _propose(drafter, *arguments):
  return drafter.propose(drafter.cfg, *arguments)


def make_target(embed_VD: np.ndarray, head_VD: np.ndarray) -> Target:
  """A target of twelve layers of which only the tables are there."""
  V, D = embed_VD.shape
  return Target(
    name='tiny',
    cfg=TargetConfig('qwen3', V, D, 12, 4, 2, 16, 96, max_position=512),
    params=TargetParams(
      jnp.asarray(embed_VD), (), jnp.ones((D,)), jnp.asarray(head_VD)
    ),
    tokenizer=None,
    head_VD=head_VD,
  )


@functools.cache
def load_run(name: str) -> Run:
  path = GOLDEN / name
  if (path / 'target.safetensors').exists():
    tables = load_file(path / 'target.safetensors')
    embed_VD = tables['model.embed_tokens.weight']
  else:  # DeepSpec's checkpoints hold copies
    tables = load_file(path / 'model.safetensors')
    embed_VD = tables['embed_tokens.weight']
  target = make_target(embed_VD, tables.get('lm_head.weight', embed_VD))
  return Run(path, target, load_drafter(path, target))


def rounds_of(run: Run):
  """The recorded rounds, each with the cache after its rows are taken in."""
  expected, cache = run.recorded('serve'), run.cache()
  for i in (1, 2):
    want = {
      k.removeprefix(f'round{i}.'): v
      for k, v in expected.items()
      if k.startswith(f'round{i}.')
    }
    cache = run.extend(cache, want['pending_features'])
    start = int(want['start_position'])
    assert cache.length_B[0] == start
    for part, rows in (('keys', cache.k), ('values', cache.v)):
      if f'draft_cache_{part}' in want:
        np.testing.assert_allclose(
          np.stack(rows)[:, 0, :, :start],
          want[f'draft_cache_{part}'],
          atol=ATOL,
        )
    np.testing.assert_array_equal(
      [[*want['anchor_id'], *[run.cfg.mask_id] * (run.cfg.block - 1)]],
      want['block_ids'],
    )
    yield want, cache, start


def context_of(cache: DraftCache) -> list[backbone.Context]:
  return list(zip(cache.k, cache.v, strict=True))


def place_of(cache: DraftCache, start) -> Place:
  """One block a request, that sees all context there is."""
  return Place(
    jnp.broadcast_to(jnp.asarray(start), cache.length_B.shape)[:, None],
    cache.length_B[:, None],
  )


flash_hidden = static_jit(dflash.hidden_states)
flash2_hidden = static_jit(dflash2.hidden_states)


def sampled(run: Run, want, start: int, temperature: float, batch: int):
  """A recorded round proposed by many requests of one temperature; the first
  is greedy."""
  keys_B = round_keys(
    jnp.arange(batch, dtype=jnp.uint32), jnp.zeros(batch, int), Stream.DRAFT
  )
  sampling = Sampling.make(batch, temperature)
  sampling = dataclasses.replace(
    sampling, temperature_B=sampling.temperature_B.at[0].set(0)
  )
  cache = run.cache(np.repeat(want['pending_features'], batch, axis=0))
  anchor_B = np.repeat(want['anchor_id'], batch)
  return run.propose(cache, anchor_B, start, sampling, keys_B)


def assert_drawn_from(drawn: np.ndarray, law_V: np.ndarray) -> None:
  """A chi-square test; what is rare is pooled."""
  seen = np.bincount(drawn, minlength=len(law_V))
  law_V = np.asarray(law_V, np.float64) / np.sum(law_V, dtype=np.float64)
  assert seen[law_V == 0].sum() == 0
  rare = law_V * len(drawn) < 5
  seen = np.append(seen[~rare], seen[rare].sum())
  law_V = np.append(law_V[~rare], law_V[rare].sum())
  used = law_V > 0
  assert used.sum() > 1
  fit = stats.chisquare(seen[used], law_V[used] * len(drawn))
  assert fit.pvalue > 1e-3


def trained_hidden(run: Run, backbone_params) -> tuple[np.ndarray, jax.Array]:
  """States of the blocks of the recorded training batch, [B, A, K, D], after
  a comparison with the recorded ones; and which blocks are not padding."""
  expected = run.recorded('train')
  anchors_BA = jnp.asarray(expected['anchors'])
  cache = run.cache(expected['context_features'])
  hidden = flash_hidden(
    run.cfg,
    backbone_params,
    run.embed_VD,
    expected['block_ids'][..., 0],
    context_of(cache),
    Place(anchors_BA, anchors_BA),
  )
  kept = expected['block_keep'].astype(bool)
  np.testing.assert_allclose(
    hidden[kept], expected['hidden_states'][kept], atol=ATOL
  )
  return kept, hidden


def hidden_of(run: Run, want, cache, start, hidden=flash_hidden) -> jax.Array:
  """States of a recorded round's block, [1, A, K, D] with A = 1."""
  params = run.params
  if hidden is flash_hidden:
    params = getattr(params, 'backbone', params)
  return hidden(
    run.cfg,
    params,
    run.embed_VD,
    want['anchor_id'][:, None],
    context_of(cache),
    place_of(cache, start),
  )


@functools.partial(static_jit, static_argnames='replace_layers')
def spine_draft(cfg, params, embed_VD, anchor_BA, context, place, **gold):
  """`dspine.draft`, compiled; hidden, pre-injection states and features."""
  out = dspine.draft(cfg, params, embed_VD, anchor_BA, context, place, **gold)
  return out.hidden_BAKD, out.pre_BAKD, jnp.stack(out.features_BAKR)


@static_jit
def logits_of(cfg, hidden, head_VD):
  return backbone.logits_of(cfg, hidden, head_VD)


@static_jit
def both_tables(cfg, params, head_VD, *table):
  """The transition table in its direct and in its factored form."""
  tables = factored.make_tables(cfg, params, head_VD)
  return (
    dspine.transition_direct(cfg, params, head_VD, *table),
    factored.transition_factored(cfg, params, tables, head_VD, *table),
  )


@static_jit
def refined_with(cfg, params, pre, tokens):
  """`dspine.refine` with the codes of known predecessors."""
  u = dspine.code(params.codes_VR, tokens, jnp.float32)
  return dspine.refine(cfg, params, pre, u)
