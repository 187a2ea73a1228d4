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
