"""Named shapes of injections: requests, slots, D, R, M."""

SHAPES = {
  'smollm2_1': (1, 16, 576, 384, 256),
  'smollm2_8': (8, 16, 576, 384, 256),
  'qwen3-8b_1': (1, 16, 4096, 1024, 512),
  'qwen3-8b_4': (4, 16, 4096, 1024, 512),
  'qwen3-8b_8': (8, 16, 4096, 1024, 512),
  'qwen3-8b_32': (32, 16, 4096, 1024, 512),
}
# Blocks that are no whole swizzle rows, several chunks, one block of one slot
# after the anchor.
TOY = {
  'toy_one': (1, 2, 128, 64, 64),
  'toy_odd': (3, 5, 192, 64, 64),
  'toy_chunks': (9, 12, 64, 64, 64),
}
