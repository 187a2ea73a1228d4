"""From named checkpoint tensors to `LayerParams`, and back.

Llama, Qwen2, Qwen3 targets and every drafter of the family name a layer's
tensors alike; this is the one place that knows those names and how they are
fused.
"""

from collections.abc import Callable, Iterable

import numpy as np

from spinejax.errors import InputError
from spinejax.target.layers import LayerParams

DTYPES = ('float32', 'bfloat16', 'float16')
# Constants, and the head where the config ties it to the embedding.
_NEED_NO_READER = ('rotary_emb.inv_freq', 'attn_rot_embd', 'lm_head.weight')

Fetch = Callable[[str, tuple[int, ...]], np.ndarray]


def checked_fetch(get: Callable[[str], np.ndarray], source: str) -> Fetch:
  """A fetch that names the tensor when it is missing or not as expected."""

  def fetch(name: str, shape: tuple[int, ...]) -> np.ndarray:
    try:
      x = get(name)
    except KeyError:
      raise InputError(f'{source}: tensor {name!r} is missing') from None
    if x.shape != shape:
      raise InputError(
        f'{source}: tensor {name!r} has shape {x.shape}, expected {shape}'
      )
    if x.dtype.name not in DTYPES:
      raise InputError(
        f'{source}: tensor {name!r} has dtype {x.dtype.name}, expected one of '
        f'{", ".join(DTYPES)}'
      )
    if not _finite(x):
      raise InputError(
        f'{source}: tensor {name!r} has values that are not finite'
      )
    return x

  return fetch


def _finite(x: np.ndarray) -> bool:
  """Whether all values are finite; the sum tells, at a fraction of the cost."""
  with np.errstate(all='ignore'):
    total = np.sum(x, dtype=np.float32)
  # Finite values may still overflow a sum.
  return bool(np.isfinite(total)) or bool(np.isfinite(x).all())


def refuse_unread(names: Iterable[str], cfg, source: str) -> None:
  """Refuses weights that nothing asked for: the model has more than `cfg`."""
  for name in sorted(names):
    if not name.endswith(_NEED_NO_READER):
      raise InputError(
        f'{source}: tensor {name!r} is not part of a {cfg.family} model of '
        f'{cfg.layers} layers'
      )


def _names(prefix: str) -> dict[str, str]:
  attn, mlp = f'{prefix}self_attn.', f'{prefix}mlp.'
  return {
    'attn_norm': f'{prefix}input_layernorm.weight',
    'mlp_norm': f'{prefix}post_attention_layernorm.weight',
    'q': f'{attn}q_proj.',
    'k': f'{attn}k_proj.',
    'v': f'{attn}v_proj.',
    'o': f'{attn}o_proj.weight',
    'q_norm': f'{attn}q_norm.weight',
    'k_norm': f'{attn}k_norm.weight',
    'gate': f'{mlp}gate_proj.weight',
    'up': f'{mlp}up_proj.weight',
    'down': f'{mlp}down_proj.weight',
  }


def layer_from_tensors(fetch: Fetch, prefix: str, cfg) -> LayerParams:
  """One layer (NumPy arrays) from published tensors named under `prefix`."""
  n = _names(prefix)
  G, C, D, F = cfg.kv_heads, cfg.head_dim, cfg.width, cfg.ffn
  q_rows, kv_rows = cfg.heads * C, G * C

  def fuse(part: str, *tail: int) -> np.ndarray:
    q = fetch(n['q'] + part, (q_rows, *tail)).reshape(G, -1, C, *tail)
    k = fetch(n['k'] + part, (kv_rows, *tail)).reshape(G, 1, C, *tail)
    v = fetch(n['v'] + part, (kv_rows, *tail)).reshape(G, 1, C, *tail)
    return np.concatenate([q, k, v], axis=1)

  return LayerParams(
    attn_norm_D=fetch(n['attn_norm'], (D,)),
    qkv_GJCD=fuse('weight', D),
    out_DX=fetch(n['o'], (D, q_rows)),
    mlp_norm_D=fetch(n['mlp_norm'], (D,)),
    gate_up_F2D=np.stack(
      [fetch(n['gate'], (F, D)), fetch(n['up'], (F, D))], axis=1
    ),
    down_DF=fetch(n['down'], (D, F)),
    qkv_bias_GJC=fuse('bias') if cfg.qkv_bias else None,
    q_norm_C=fetch(n['q_norm'], (C,)) if cfg.qk_norm else None,
    k_norm_C=fetch(n['k_norm'], (C,)) if cfg.qk_norm else None,
  )


def layer_to_tensors(layer: LayerParams, prefix: str) -> dict[str, np.ndarray]:
  """The inverse of `layer_from_tensors`."""
  n = _names(prefix)
  qkv = np.asarray(layer.qkv_GJCD)
  D = qkv.shape[-1]
  tensors = {
    n['attn_norm']: layer.attn_norm_D,
    n['q'] + 'weight': qkv[:, :-2].reshape(-1, D),
    n['k'] + 'weight': qkv[:, -2].reshape(-1, D),
    n['v'] + 'weight': qkv[:, -1].reshape(-1, D),
    n['o']: layer.out_DX,
    n['mlp_norm']: layer.mlp_norm_D,
    n['gate']: layer.gate_up_F2D[:, 0],
    n['up']: layer.gate_up_F2D[:, 1],
    n['down']: layer.down_DF,
  }
  if layer.qkv_bias_GJC is not None:
    bias = np.asarray(layer.qkv_bias_GJC)
    tensors[n['q'] + 'bias'] = bias[:, :-2].reshape(-1)
    tensors[n['k'] + 'bias'] = bias[:, -2].reshape(-1)
    tensors[n['v'] + 'bias'] = bias[:, -1].reshape(-1)
  if layer.q_norm_C is not None:
    tensors[n['q_norm']] = layer.q_norm_C
    tensors[n['k_norm']] = layer.k_norm_C
  # Checkpoint writers store the buffer, not the view: strides must be plain.
  return {k: np.ascontiguousarray(v) for k, v in tensors.items()}
