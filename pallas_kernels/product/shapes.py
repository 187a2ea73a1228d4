"""Named shapes of products of few rows: rows, inputs and outputs."""

SHAPES = {
  'qwen3-8b_out_1': (1, 4096, 4096),
  'qwen3-8b_out_16': (16, 4096, 4096),
  'qwen3-8b_gate_16': (16, 4096, 24576),
  'qwen3-8b_down_16': (16, 12288, 4096),
  'qwen3-8b_down_64': (64, 12288, 4096),
  'smollm2_out_16': (16, 576, 576),
}
TOY = {'toy_1': (1, 128, 64), 'toy_13': (13, 192, 128), 'toy_40': (40, 64, 64)}
