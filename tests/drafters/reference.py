"""The drafters' formulas in NumPy float64, one block at a time.

Written to be read beside the papers: context and block keys are concatenated,
masks are loops, names of weights are the published ones.
"""

import numpy as np


def rms_norm(x, scale, eps):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def rotate(x_QHC, position_Q, base):
  half = x_QHC.shape[-1] // 2
  angle = position_Q[:, None, None] * base ** -(np.arange(half) / half)
  left, right = x_QHC[..., :half], x_QHC[..., half:]
  cos, sin = np.cos(angle), np.sin(angle)
  return np.concatenate(
    [left * cos - right * sin, right * cos + left * sin], axis=-1
  )


def mask(cfg, layer, start, visible, T):
  """[K, T + K]: whether a slot may look at a context row or a slot."""
  window, causal = cfg.window(layer), cfg.is_causal(layer)
  seen = np.zeros((cfg.block, T + cfg.block), bool)
  for i in range(cfg.block):
    for t in range(T + cfg.block):
      in_context = t < T
      key = t if in_context else start + t - T
      distance = start + i - key
      seen[i, t] = (
        (not in_context or t < visible)
        and (in_context or not causal or distance >= 0)
        and (window is None or abs(distance) < window)
      )
  return seen


def context(w, cfg, features_TP):
  return rms_norm(
    features_TP @ w['fc.weight'].T, w['hidden_norm.weight'], cfg.norm_eps
  )


def layer(w, cfg, index, h_KD, c_TD, start, visible):
  """One draft layer of z-lab/dflash `model.py`, without a cache."""
  at = f'layers.{index}.'
  C, T, eps = cfg.head_dim, len(c_TD), cfg.norm_eps
  position = np.concatenate([np.arange(T), start + np.arange(cfg.block)])
  x = rms_norm(h_KD, w[at + 'input_layernorm.weight'], eps)
  both = np.concatenate([c_TD, x])

  def heads(x, name):
    return (x @ w[f'{at}self_attn.{name}_proj.weight'].T).reshape(len(x), -1, C)

  q = rms_norm(heads(x, 'q'), w[at + 'self_attn.q_norm.weight'], eps)
  k = rms_norm(heads(both, 'k'), w[at + 'self_attn.k_norm.weight'], eps)
  q, k = (
    rotate(q, position[T:], cfg.rope_base),
    rotate(k, position, cfg.rope_base),
  )
  group = cfg.heads // cfg.kv_heads
  k, v = (np.repeat(y, group, axis=1) for y in (k, heads(both, 'v')))
  scores = np.einsum('qhc,khc->hqk', q, k) * C**-0.5
  scores = np.where(mask(cfg, index, start, visible, T), scores, -np.inf)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('hqk,khc->qhc', weights, v).reshape(cfg.block, -1)
  h = h_KD + mixed @ w[at + 'self_attn.o_proj.weight'].T
  x = rms_norm(h, w[at + 'post_attention_layernorm.weight'], eps)
  gate = x @ w[at + 'mlp.gate_proj.weight'].T
  up = x @ w[at + 'mlp.up_proj.weight'].T
  down = w[at + 'mlp.down_proj.weight'].T
  return h + (gate / (1 + np.exp(-gate)) * up) @ down


def hidden(w, cfg, embed_VD, features_TP, anchor, start, visible=None):
  """Final-normed states of a DFlash block [K, D]."""
  c_TD = context(w, cfg, features_TP)
  visible = len(c_TD) if visible is None else visible
  h = embed_VD[[anchor] + [cfg.mask_id] * cfg.slots] * cfg.embedding_scale
  for i in range(cfg.layers):
    h = layer(w, cfg, i, h, c_TD, start, visible)
  return rms_norm(h, w['norm.weight'], cfg.norm_eps)


def gated_message(w, cfg, h, u):
  """q of a receiver with state h [D] and a predecessor u [R]."""
  f = w[f'injection.readouts.{cfg.layers - 1}.weight'] @ h
  f *= np.sqrt(cfg.rank) / np.linalg.norm(f)
  gate = (
    w['injection.receiver_gate.weight'] @ f
    + w['injection.predecessor_gate.weight'] @ u
    + w['injection.bias']
  )
  return (w['injection.message.weight'] @ u) / (1 + np.exp(-gate))


def refine(w, cfg, h, token):
  """The last write with the code of the true predecessor, final-normed."""
  q = gated_message(w, cfg, h, np.sqrt(cfg.rank) * w['transfer_codes'][token])
  write = w[f'injection.writes.{cfg.layers - 1}.weight']
  h = h + np.linalg.norm(h) / np.sqrt(cfg.width) * (write @ q)
  return rms_norm(h, w['norm.weight'], cfg.norm_eps)


def pair_scores(w, cfg, head_VD, h, before_N, candidates_N):
  """Scores [predecessor, candidate] of one slot, by refinement."""
  refined = np.stack([refine(w, cfg, h, token) for token in before_N])
  return refined @ head_VD[candidates_N].T


def factored_scores(w, cfg, head_VD, h, before_N, candidates_N):
  """The same from products that do not depend on the predecessor's state."""
  write = w[f'injection.writes.{cfg.layers - 1}.weight']
  norm, D = w['norm.weight'], cfg.width
  u = np.sqrt(cfg.rank) * w['transfer_codes'][before_N]
  q = np.stack([gated_message(w, cfg, h, row) for row in u])
  t = np.linalg.norm(h) / np.sqrt(D)
  straight = head_VD[candidates_N] @ (norm * h)
  through = q @ ((head_VD[candidates_N] * norm) @ write).T
  square = np.einsum('nm,mk,nk->n', q, write.T @ write, q)
  mean = (h @ h + 2 * t * q @ (write.T @ h) + t * t * square) / D
  return (straight + t * through) / np.sqrt(mean + cfg.norm_eps)[:, None]
