"""The transformer layer that targets and drafters share, as pure functions.

Weights are stored [out, in] as the published checkpoints have them, with the
projections that read the same input fused: one group of attention heads lies
together (its queries, its key, its value), so a tensor-parallel shard is a
range of groups. Softmax, norms and all accumulation are in float32.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from spinejax.sharding import mesh_in
from spinejax.target.config import RopeScaling, rope_frequencies

# Without it XLA:GPU may multiply float32 in TF32, which breaks exactness.
PRECISION = lax.Precision.HIGHEST
# Rows up to which a product takes as long as reading its weights, and those up
# to which `_streamed` pays; lines that it reads in pairs.
_FEW_ROWS, _STREAMED_ROWS, _SHORT = 32, 8, 1024
# Rows of the shortest prefix of a cache that `over_prefix` takes, and of a step
# of `_mix_in_steps`; every capacity bucket above 1024 has whole steps.
_PREFIX, _STEP = 512, 512


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerParams:
  """Weights of one layer.

  Attributes:
    attn_norm_D, mlp_norm_D: scales of the norms before each sublayer.
    qkv_GJCD: fused projection; J = query heads of the group, key, value.
    qkv_bias_GJC: its bias, or None.
    q_norm_C, k_norm_C: per-head norms before the rotation, or None.
    out_DX: attention output projection; X = all query heads, joined.
    gate_up_F2D: fused SwiGLU input projections (gate, up).
    down_DF: SwiGLU output projection.
  """

  attn_norm_D: jax.Array
  qkv_GJCD: jax.Array
  out_DX: jax.Array
  mlp_norm_D: jax.Array
  gate_up_F2D: jax.Array
  down_DF: jax.Array
  qkv_bias_GJC: jax.Array | None = None
  q_norm_C: jax.Array | None = None
  k_norm_C: jax.Array | None = None

  @property
  def head_norms(self) -> tuple[jax.Array, jax.Array] | None:
    """Norms of query and key heads, None where a family has none."""
    return None if self.q_norm_C is None else (self.q_norm_C, self.k_norm_C)


def einsum(spec: str, *operands: jax.Array, dtype=None) -> jax.Array:
  """`jnp.einsum` at full precision; `dtype` is that of sums and result.

  Gradients are products in the operands' dtype: with a wider result, JAX would
  multiply it with them as it is, past the tensor cores.
  """
  return _einsum(spec, dtype, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _einsum(spec, dtype, *operands):
  return jnp.einsum(
    spec, *operands, precision=PRECISION, preferred_element_type=dtype
  )


def _einsum_forward(spec, dtype, *operands):
  return _einsum(spec, dtype, *operands), operands


def _einsum_backward(spec, dtype, operands, cotangent):
  del dtype
  narrow = jnp.result_type(*operands)
  product = functools.partial(jnp.einsum, spec, precision=PRECISION)
  return jax.vjp(product, *operands)[1](cotangent.astype(narrow))


_einsum.defvjp(_einsum_forward, _einsum_backward)


def dense(x: jax.Array, weight: jax.Array, dtype=None) -> jax.Array:
  """Product of x [..., I] with a weight stored [*out, I]: [..., *out].

  One plain matrix product: XLA:CPU takes a slow path, ten times slower, for
  products whose operands keep several free axes.
  """
  rows = x.reshape(-1, x.shape[-1])
  lines = weight.reshape(-1, weight.shape[-1])
  whole = functools.partial(_product, dtype=dtype)
  # What is split over a mesh cannot be read in pairs without being gathered.
  if 1 < len(rows) <= _STREAMED_ROWS and mesh_in(lines) is None:
    streamed = functools.partial(_streamed, dtype=dtype)
    y = lax.platform_dependent(rows, lines, cpu=streamed, default=whole)
  else:
    y = whole(rows, lines)
  return y.reshape(*x.shape[:-1], *weight.shape[:-1])


def _product(x: jax.Array, y: jax.Array, dtype) -> jax.Array:
  """Products of the rows of x with the rows of y."""
  return lax.dot_general(
    x,
    y,
    (((1,), (1,)), ((), ())),
    precision=PRECISION,
    preferred_element_type=dtype,
  )


def _streamed(x_RI: jax.Array, weight_OI: jax.Array, dtype) -> jax.Array:
  """`_product` of few rows with a weight, as a CPU does it fastest.

  XLA:CPU repacks the right operand of a product and reads the left one as it
  lies, so the weight must be the left one; the barrier keeps it there. It is
  at its best with 4 or 8 rows, and reads short lines slowly, so two are read
  as one of twice the length: [w, w'] [[x, 0], [0, x]].
  """
  (rows, width), lines = x_RI.shape, len(weight_OI)
  x_RI = jnp.pad(x_RI, ((0, -rows % 4), (0, 0)))
  if width <= _SHORT and lines % 2 == 0:
    zeros = jnp.zeros_like(x_RI)
    x_RI = jnp.block([[x_RI, zeros], [zeros, x_RI]])
    weight_OI = weight_OI.reshape(lines // 2, 2 * width)
  y = lax.optimization_barrier(_product(weight_OI, x_RI, dtype))
  return y.reshape(lines, -1)[:, :rows].T


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
  """Root-mean-square norm over the last axis, computed in float32."""
  x32 = x.astype(jnp.float32) * _inverse_rms(x, eps)
  return (x32 * scale.astype(jnp.float32)).astype(x.dtype)


def _inverse_rms(x: jax.Array, eps: float) -> jax.Array:
  """1 / rms over the last axis, kept, float32."""
  x32 = x.astype(jnp.float32)
  return lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)


def normed_dense(
  x: jax.Array, scale_D: jax.Array, eps: float, weight: jax.Array
) -> jax.Array:
  """`dense(rms_norm(x, scale_D, eps), weight)`.

  For few rows of bfloat16 the norm divides the product: so XLA:GPU finds it,
  and the scaled rows, in one pass of x, and divides in what reads the product.
  float32 is for exactness: there all row counts share one formula.
  """
  rows, dtypes = x.size // x.shape[-1], {x.dtype, weight.dtype}
  if rows > _FEW_ROWS or dtypes != {jnp.dtype(jnp.bfloat16)}:
    return dense(rms_norm(x, scale_D, eps), weight)
  inverse = _inverse_rms(x, eps)
  y = dense(x * scale_D, weight, dtype=jnp.float32)
  wide = (*x.shape[:-1], *(1,) * (weight.ndim - 1))
  return (y * inverse.reshape(wide)).astype(x.dtype)


def rotary(
  position: jax.Array,
  head_dim: int,
  base: float,
  scaling: RopeScaling | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine, float32 [..., 1, C/2], of integer positions [...]."""
  freq = jnp.asarray(rope_frequencies(head_dim, base, scaling), jnp.float32)
  angle = position[..., None, None].astype(jnp.float32) * freq
  return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates the two halves of x [..., heads, C] against each other."""
  left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = [left * cos - right * sin, right * cos + left * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def fused_qkv(layer: LayerParams, h: jax.Array, eps: float) -> jax.Array:
  """Queries, key and value of every group, [..., G, J, C], of h [..., D]."""
  qkv = normed_dense(h, layer.attn_norm_D, eps, layer.qkv_GJCD)
  return qkv if layer.qkv_bias_GJC is None else qkv + layer.qkv_bias_GJC


def split_qkv(
  qkv: jax.Array,
  rope: tuple[jax.Array, jax.Array],
  norms: tuple[jax.Array, jax.Array] | None,
  eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Queries [..., G, H/G, C] and keys, values [..., G, C] of `fused_qkv`.

  Queries and keys are normalised (if there are norms) and rotated.
  """
  q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
  if norms is not None:
    q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
  cos, sin = rope
  # One more axis for the queries: group, then head of the group.
  q = rotate(q, cos[..., None, :], sin[..., None, :])
  return q, rotate(k, cos, sin), v


def swiglu(layer: LayerParams, h: jax.Array, eps: float) -> jax.Array:
  """The gated feed-forward sublayer of h [..., D], its norm included."""
  return gated(layer, normed_dense(h, layer.mlp_norm_D, eps, layer.gate_up_F2D))


def gated(layer: LayerParams, gate_up: jax.Array) -> jax.Array:
  """silu(gate) up of the projections [..., F, 2], projected back to D."""
  hidden = jax.nn.silu(gate_up[..., 0]) * gate_up[..., 1]
  return dense(hidden, layer.down_DF)


def attend(
  q: jax.Array, k_BGTC: jax.Array, v_BGTC: jax.Array, seen_BQT: jax.Array
) -> jax.Array:
  """Grouped-query attention; scores and softmax in float32.

  Args:
    q: queries [B, Q, G, H/G, C].
    k_BGTC, v_BGTC: keys and values, cache layout.
    seen_BQT: whether query row q may look at row t.

  Returns:
    [B, Q, H * C].
  """
  return over_prefix(functools.partial(_attend, q), k_BGTC, v_BGTC, seen_BQT)


def _attend(q, k_BGTC, v_BGTC, seen_BQT):
  B, Q, G, U, C = q.shape
  # Heads x rows of a group are the rows of one batched matrix product.
  q_BGQC = q.transpose(0, 2, 3, 1, 4).reshape(B, G, U * Q, C)
  scores = einsum('bgqc,bgtc->bgqt', q_BGQC, k_BGTC, dtype=jnp.float32)
  scores = scores.reshape(B, G, U, Q, -1) * C**-0.5
  weights = masked_softmax(scores, seen_BQT[:, None, None])
  weights = weights.astype(v_BGTC.dtype).reshape(B, G, U * Q, -1)
  mixed = lax.platform_dependent(
    weights, v_BGTC, cpu=_mix_in_steps, default=_mix
  )
  mixed = mixed.reshape(B, G, U, Q, C).transpose(0, 3, 1, 2, 4)
  return mixed.reshape(B, Q, -1)


def has_flash(q: jax.Array) -> bool:
  """Whether cuDNN's fused attention takes q: bfloat16, on one GPU.

  JAX looks for cuDNN while it traces, so the platform is asked for then.
  """
  one_gpu = jax.default_backend() == 'gpu' and mesh_in(q) is None
  return one_gpu and q.dtype == jnp.bfloat16


def attend_causally(
  q: jax.Array, k_BTGC: jax.Array, v_BTGC: jax.Array
) -> jax.Array:
  """Attention of whole sequences, each row over itself and those before it.

  Args:
    q: queries [B, T, G, H/G, C].

  Returns:
    [B, T, H * C].
  """
  B, T, _, _, C = q.shape
  if has_flash(q):
    return jax.nn.dot_product_attention(
      q.reshape(B, T, -1, C), k_BTGC, v_BTGC, is_causal=True,
      implementation='cudnn',
    ).reshape(B, T, -1)  # fmt: skip
  seen_BTT = jnp.broadcast_to(jnp.tri(T, dtype=bool), (B, T, T))
  return attend(q, k_BTGC.swapaxes(1, 2), v_BTGC.swapaxes(1, 2), seen_BTT)


def _mix(weights_BGNT: jax.Array, v_BGTC: jax.Array) -> jax.Array:
  """Values [B, G, N, C], mixed by weights."""
  return einsum('bgnt,bgtc->bgnc', weights_BGNT, v_BGTC)


def _mix_in_steps(weights_BGNT: jax.Array, v_BGTC: jax.Array) -> jax.Array:
  """`_mix` to which rows without weight, at the end, add nothing at all.

  XLA:CPU splits a long sum as its length demands, so the last bits of a row
  would depend on the prefix read, and that on the other requests.
  """
  B, G, T, C = v_BGTC.shape
  if T % _STEP:
    return _mix(weights_BGNT, v_BGTC)
  weights_BGNST = weights_BGNT.reshape(B, G, -1, T // _STEP, _STEP)
  v_BGSTC = v_BGTC.reshape(B, G, -1, _STEP, C)
  return jnp.sum(einsum('bgnst,bgstc->bgsnc', weights_BGNST, v_BGSTC), axis=2)


def over_prefix(
  attend: Callable[..., jax.Array],
  k_BGTC: jax.Array,
  v_BGTC: jax.Array,
  seen: jax.Array,
) -> jax.Array:
  """`attend(k, v, seen)`, on a CPU of a prefix with every row that is seen.

  There attention takes as long as the rows it is given are many, seen or not;
  so the shortest of a few prefixes is taken. Elsewhere a branch would cost
  more than it saves.

  Args:
    seen: [..., T].
  """
  T = k_BGTC.shape[2]
  if T < 2 * _PREFIX:
    return attend(k_BGTC, v_BGTC, seen)
  # The last one is filled up to whole steps.
  sizes = [T + -T % _STEP]
  while (shorter := _PREFIX << len(sizes) - 1) < sizes[-1]:
    sizes.insert(-1, shorter)

  def of(rows):
    def cut(x, axis):
      behind = [(0, 0)] * x.ndim
      behind[axis] = (0, max(rows - T, 0))
      return jnp.pad(lax.slice_in_dim(x, 0, min(rows, T), axis=axis), behind)

    return lambda k, v, seen: attend(cut(k, 2), cut(v, 2), cut(seen, -1))

  def shortest(k_BGTC, v_BGTC, seen):
    last = jnp.max(jnp.where(seen, jnp.arange(T), -1))
    which = jnp.sum(last >= jnp.array(sizes[:-1]))
    return lax.switch(which, [of(n) for n in sizes], k_BGTC, v_BGTC, seen)

  return lax.platform_dependent(
    k_BGTC, v_BGTC, seen, cpu=shortest, default=attend
  )


def masked_softmax(scores: jax.Array, visible: jax.Array) -> jax.Array:
  """Softmax over the last axis, float32; a row that sees nothing gets zeros."""
  scores = jnp.where(visible, scores, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True)
  weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
  total = jnp.sum(weights, axis=-1, keepdims=True)
  return weights / jnp.where(total > 0, total, 1.0)


def random_layer(key: jax.Array, cfg, dtype) -> LayerParams:
  """A layer with random weights for `cfg` (a target's or drafter's shape)."""
  keys = jax.random.split(key, 4)

  def normal(key, fan_in, *shape):
    x = jax.random.normal(key, shape, jnp.float32)
    return (x * fan_in**-0.5).astype(dtype)

  rows = cfg.heads // cfg.kv_heads + 2
  ones = jnp.ones((cfg.width,), dtype)
  head_norm = jnp.ones((cfg.head_dim,), dtype) if cfg.qk_norm else None
  bias = (
    jnp.zeros((cfg.kv_heads, rows, cfg.head_dim), dtype)
    if cfg.qkv_bias
    else None
  )
  return LayerParams(
    attn_norm_D=ones,
    qkv_GJCD=normal(
      keys[0], cfg.width, cfg.kv_heads, rows, cfg.head_dim, cfg.width
    ),
    out_DX=normal(
      keys[1], cfg.heads * cfg.head_dim, cfg.width, cfg.heads * cfg.head_dim
    ),
    mlp_norm_D=ones,
    gate_up_F2D=normal(keys[2], cfg.width, cfg.ffn, 2, cfg.width),
    down_DF=normal(keys[3], cfg.ffn, cfg.width, cfg.ffn),
    qkv_bias_GJC=bias,
    q_norm_C=head_norm,
    k_norm_C=head_norm,
  )
