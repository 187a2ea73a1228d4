"""DSpark: a low-rank Markov head and a confidence head on a block drafter.

The slots run in parallel; their logits are then corrected one after the other
by the token before. Letters as in the paper (arXiv 2607.05147) and
deepseek-ai/DeepSpec `markov_head.py`; w = W1[x_{k-1}], and x_{-1} is the
anchor, whose slot k = 0 proposes as well:

  logits_k = base_k + W2 z_k
  vanilla  z = w
  gated    z = sigmoid(gate_proj [h_k; w]) * w
  rnn      g, c, o = joint_proj [s; w; h_k];  z = tanh(o)
           s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c),  s = 0 at first
  confidence_k = sigmoid(proj [h_k; w])
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from spinejax.drafters import backbone
from spinejax.drafters.backbone import BackboneConfig, BackboneParams
from spinejax.drafters.base import Drafter, Proposal
from spinejax.drafters.dflash import hidden_states
from spinejax.drafters.sequence import choose, tokens_before
from spinejax.errors import InputError
from spinejax.target import layers as nn

HEADS = ('vanilla', 'gated', 'rnn')
# `initializer_range` of the published configs.
_STD = 0.02


@dataclasses.dataclass(frozen=True)
class DSparkConfig(BackboneConfig):
  """The backbone's shape, always `anchor_first`, and the heads.

  Attributes:
    markov_rank: E, rank of the Markov head.
    markov_head: 'vanilla', 'gated' or 'rnn'.
    confidence: whether there is a confidence head.
    confidence_with_markov: whether it reads w beside the state.
  """

  anchor_first: bool = True
  markov_rank: int = 256
  markov_head: str = 'vanilla'
  confidence: bool = True
  confidence_with_markov: bool = True

  def __post_init__(self):
    super().__post_init__()
    backbone.check_integers(self, 'markov_rank')
    if not self.anchor_first:
      raise InputError('anchor_first = False: the anchor of DSpark proposes')
    if self.markov_head not in HEADS:
      raise InputError(
        f'markov_head = {self.markov_head!r}, expected one of '
        f'{", ".join(HEADS)}'
      )
    for name in ('confidence', 'confidence_with_markov'):
      value = getattr(self, name)
      if type(value) is not bool:
        raise InputError(f'{name} = {value!r}, expected True or False')

  @property
  def mix_shape(self) -> tuple[int, int] | None:
    """Outputs and inputs of gate_proj or joint_proj."""
    E, D = self.markov_rank, self.width
    return {'vanilla': None, 'gated': (E, D + E), 'rnn': (3 * E, 2 * E + D)}[
      self.markov_head
    ]

  @property
  def head_weights(self) -> int:
    """Weights beside the backbone's, as a number."""
    outputs, inputs = self.mix_shape or (0, 0)
    confidence = self.confidence * (self.confidence_inputs + 1)
    tables = 2 * self.vocab * self.markov_rank
    return tables + outputs * (inputs + 1) + confidence

  @property
  def confidence_inputs(self) -> int:
    """Inputs of the confidence head."""
    return self.width + self.confidence_with_markov * self.markov_rank


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DSparkParams:
  """Weights.

  Attributes:
    before_VE, up_VE: W1 and W2.
    mix_OI, mix_O: gate_proj or joint_proj, and its bias; None if vanilla.
    confidence_1I, confidence_1: the confidence head and its bias, or None.
  """

  backbone: BackboneParams
  before_VE: jax.Array
  up_VE: jax.Array
  mix_OI: jax.Array | None = None
  mix_O: jax.Array | None = None
  confidence_1I: jax.Array | None = None
  confidence_1: jax.Array | None = None


def markov(params: DSparkParams, before: Int[Array, '*rows']) -> jax.Array:
  """w, the row of W1 of the token before, [..., E]."""
  return jnp.take(params.before_VE, before, axis=0, mode='clip')


def step(
  cfg: DSparkConfig,
  params: DSparkParams,
  s: Float[Array, '*rows E'],
  w: Float[Array, '*rows E'],
  h: Float[Array, '*rows D'],
) -> tuple[jax.Array, jax.Array]:
  """The state after a slot, and its z; only `rnn` has a state."""
  if cfg.markov_head == 'vanilla':
    return s, w
  inputs = [h, w] if cfg.markov_head == 'gated' else [s, w, h]
  mixed = nn.dense(jnp.concatenate(inputs, axis=-1), params.mix_OI)
  mixed = mixed + params.mix_O
  if cfg.markov_head == 'gated':
    return s, jax.nn.sigmoid(mixed) * w
  g, c, o = jnp.split(mixed, 3, axis=-1)
  g = jax.nn.sigmoid(g)
  return g * s + (1 - g) * jnp.tanh(c), jnp.tanh(o)


def correction(
  cfg: DSparkConfig,
  params: DSparkParams,
  embed_VD: jax.Array,
  hidden_BASD: Float[Array, 'B A S D'],
  before_BAS: Int[Array, 'B A S'],
) -> Float[Array, 'B A S E']:
  """z of every slot after known tokens: logits are base + up_VE z.

  Args:
    embed_VD: not read; Domino's correction reads it.
    hidden_BASD: final-normed states of the proposing slots, here all.
    before_BAS: the token before the one that each slot proposes.
  """
  del embed_VD
  h = hidden_BASD
  w = markov(params, before_BAS).astype(h.dtype)
  s = jnp.zeros_like(w[:, :, 0])
  if cfg.markov_head != 'rnn':
    return step(cfg, params, s, w, h)[1]
  _, z_SBAE = lax.scan(
    lambda s, x: step(cfg, params, s, *x),
    s,
    (jnp.moveaxis(w, 2, 0), jnp.moveaxis(h, 2, 0)),
  )
  return jnp.moveaxis(z_SBAE, 0, 2)


def confidence_logits(
  cfg: DSparkConfig,
  params: DSparkParams,
  hidden_BASD: Float[Array, 'B A S D'],
  before_BAS: Int[Array, 'B A S'],
) -> Float[Array, 'B A S']:
  """Confidence of every slot after known tokens, before the sigmoid,
  float32."""
  x = hidden_BASD
  if cfg.confidence_with_markov:
    w = markov(params, before_BAS).astype(x.dtype)
    x = jnp.concatenate([x, w], axis=-1)
  y = nn.dense(x, params.confidence_1I, dtype=jnp.float32)
  return (y + params.confidence_1)[..., 0]


def random_dspark(
  cfg: DSparkConfig, key: jax.Array, dtype=jnp.float32
) -> DSparkParams:
  """Fresh weights: normal, of standard deviation 0.02, biases at zero.

  As DeepSpec starts them (transformers' initialisation); the first correction
  is then small beside the logits.
  """
  base_key, *keys = jax.random.split(key, 5)
  V, E = cfg.vocab, cfg.markov_rank

  def normal(key, shape):
    return (_STD * jax.random.normal(key, shape)).astype(dtype)

  mix = {}
  if cfg.mix_shape is not None:
    mix = dict(
      mix_OI=normal(keys[2], cfg.mix_shape),
      mix_O=jnp.zeros(cfg.mix_shape[:1], dtype),
    )
  confidence = {}
  if cfg.confidence:
    confidence = dict(
      confidence_1I=normal(keys[3], (1, cfg.confidence_inputs)),
      confidence_1=jnp.zeros((1,), dtype),
    )
  return DSparkParams(
    backbone.random_backbone(cfg, base_key, dtype),
    normal(keys[0], (V, E)),
    normal(keys[1], (V, E)),
    **mix,
    **confidence,
  )


def propose(
  cfg, params, view, cache, history, anchor_B, keys_B, sampling
) -> Proposal:
  """One parallel pass, then slot by slot; its confidence along that path."""
  context, place = backbone.at_anchor(cache, history)
  hidden_BAKD = hidden_states(
    cfg, params.backbone, view.embed_VD, anchor_B[:, None], context, place
  )
  with jax.named_scope('select'):
    hidden_BSD = hidden_BAKD[:, 0]
    base_BSV = backbone.logits_of(cfg, hidden_BSD, view.head_VD)

    def at(k, s, before_B):
      w = markov(params, before_B).astype(hidden_BSD.dtype)
      return step(cfg, params, s, w, hidden_BSD[:, k])

    s = jnp.zeros((anchor_B.shape[0], cfg.markov_rank), hidden_BSD.dtype)
    proposal = choose(base_BSV, params.up_VE, at, s, anchor_B, keys_B, sampling)
    if not cfg.confidence:
      return proposal
    before_BS = tokens_before(anchor_B, proposal.tokens_BS)
    confidence_BAS = confidence_logits(
      cfg, params, hidden_BAKD, before_BS[:, None]
    )
    return dataclasses.replace(
      proposal, confidence_BS=jax.nn.sigmoid(confidence_BAS[:, 0])
    )


def dspark(cfg: DSparkConfig) -> Drafter:
  """DSpark as a drafter."""
  return Drafter(
    'dspark', cfg, backbone.draft_cache, backbone.extend_backbone, propose
  )
