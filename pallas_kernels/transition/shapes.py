"""Named shapes of paths: requests, slots, candidates and message width."""

SHAPES = {
  'smollm2_1': (1, 15, 16, 256),
  'qwen3-8b_1': (1, 15, 16, 512),
  'qwen3-8b_8': (8, 15, 16, 512),
  'qwen3-8b_32': (32, 15, 16, 512),
}
TOY = {'toy_1': (1, 3, 16, 64), 'toy_2': (2, 9, 8, 128)}
