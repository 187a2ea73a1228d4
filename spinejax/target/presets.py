"""Published shapes, by name; for random-weight timing and memory planning."""

from spinejax.errors import InputError
from spinejax.target.config import RopeScaling, TargetConfig


def _smollm2(width, layers, heads, kv_heads, ffn, base):
  return TargetConfig(
    family='llama', vocab=49152, width=width, layers=layers, heads=heads,
    kv_heads=kv_heads, head_dim=64, ffn=ffn, norm_eps=1e-5, rope_base=base,
    tied=True, max_position=8192,
  )  # fmt: skip


def _qwen3(width, layers, heads, ffn, tied):
  return TargetConfig(
    family='qwen3', vocab=151936, width=width, layers=layers, heads=heads,
    kv_heads=8, head_dim=128, ffn=ffn, norm_eps=1e-6, rope_base=1e6,
    tied=tied, qk_norm=True, max_position=40960,
  )  # fmt: skip


def _llama3(width, layers, heads, head_dim, ffn, factor, tied):
  return TargetConfig(
    family='llama', vocab=128256, width=width, layers=layers, heads=heads,
    kv_heads=8, head_dim=head_dim, ffn=ffn, norm_eps=1e-5, rope_base=5e5,
    tied=tied, rope_scaling=RopeScaling(factor, 1.0, 4.0, 8192),
    max_position=131072,
  )  # fmt: skip


def _qwen2(width, layers, heads, kv_heads, head_dim, ffn, vocab, tied):
  return TargetConfig(
    family='qwen2', vocab=vocab, width=width, layers=layers, heads=heads,
    kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, norm_eps=1e-6,
    rope_base=1e6, tied=tied, qkv_bias=True, max_position=32768,
  )  # fmt: skip


def _llama(width, layers, heads, kv_heads, ffn, vocab, position, tied=False):
  """Other models of Llama's architecture, or of nothing but scales more."""
  return TargetConfig(
    family='llama', vocab=vocab, width=width, layers=layers, heads=heads,
    kv_heads=kv_heads, head_dim=width // heads, ffn=ffn, norm_eps=1e-5,
    rope_base=1e4, tied=tied, max_position=position,
  )  # fmt: skip


PRESETS = {
  'smollm2-135m': _smollm2(576, 30, 9, 3, 1536, 1e5),
  'smollm2-360m': _smollm2(960, 32, 15, 5, 2560, 1e5),
  'smollm2-1.7b': _smollm2(2048, 24, 32, 32, 8192, 1.3e5),
  'qwen3-0.6b': _qwen3(1024, 28, 16, 3072, True),
  'qwen3-1.7b': _qwen3(2048, 28, 16, 6144, True),
  'qwen3-4b': _qwen3(2560, 36, 32, 9728, True),
  'qwen3-8b': _qwen3(4096, 36, 32, 12288, False),
  'llama-3.2-1b': _llama3(2048, 16, 32, 64, 8192, 32.0, True),
  'llama-3.2-3b': _llama3(3072, 28, 24, 128, 8192, 32.0, True),
  'llama-3.1-8b': _llama3(4096, 32, 32, 128, 14336, 8.0, False),
  'qwen2.5-0.5b': _qwen2(896, 24, 14, 2, 64, 4864, 151936, True),
  'qwen2.5-1.5b': _qwen2(1536, 28, 12, 2, 128, 8960, 151936, True),
  'qwen2.5-3b': _qwen2(2048, 36, 16, 2, 128, 11008, 151936, True),
  'qwen2.5-7b': _qwen2(3584, 28, 28, 4, 128, 18944, 152064, False),
  'llama-2-7b': _llama(4096, 32, 32, 32, 11008, 32000, 4096),
  'tinyllama-1.1b': _llama(2048, 22, 32, 4, 5632, 32000, 2048),
  'mistral-7b': _llama(4096, 32, 32, 8, 14336, 32768, 32768),
  'yi-6b': _llama(4096, 32, 32, 4, 11008, 64000, 4096),
  'deepseek-llm-7b': _llama(4096, 30, 32, 32, 11008, 102400, 4096),
  # Without the last 3 tokens of the 49155 that some of these have: an odd
  # number of logits is slow.
  'granite-3.1-2b': _llama(2048, 40, 32, 8, 8192, 49152, 131072, True),
  'granite-3.1-8b': _llama(4096, 40, 32, 8, 12800, 49152, 131072, True),
}


def preset(name: str) -> TargetConfig:
  """The published shape called `name`.

  Raises:
    InputError: no such preset; the message lists those there are.
  """
  if name not in PRESETS:
    raise InputError(
      f'unknown preset {name!r}; expected one of {", ".join(PRESETS)}'
    )
  return PRESETS[name]
