"""Times each kernel beside XLA's own fusion of its reference."""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from experiments import common
from experiments.kernel_cases import OPS, Case, cases, platform_of
from experiments.kernel_timing import (
  Stack,
  interleaved_us,
  outputs_key,
  relative_error,
  roofline_us,
)
from spinejax import report
from spinejax.errors import InputError
from spinejax.report import profile


def measure(case: Case, config, outputs: dict | None = None) -> dict:
  """The metric row of a case; that of a kernel that fails says why.

  Args:
    outputs: takes the first layer's inputs and output, by `outputs_key`.
  """
  layers = 2 if config.toy else case.layers()
  stack = Stack(case, layers)
  exact = stack.one(case.reference, jnp.float32)
  row = dict(
    op=case.op, shape=case.shape, rows=case.rows, dtype='bfloat16',
    layers=layers, repeats=config.repeats, bytes=case.bytes, flops=case.flops,
  )  # fmt: skip
  programs = [stack.program(case.reference)]
  with platform_of(case) as platform:
    if platform is not None:

      def kernel(x, own):
        return case.kernels[platform](x, own, case.chosen[platform])

      row['config'] = str(case.chosen[platform])
      try:
        output = stack.one(kernel)
        error = relative_error(output, exact)
        programs.append(stack.program(kernel))
      except Exception as failed:  # the other cases are worth having
        row['failed'] = f'{type(failed).__name__}: {failed}'[:300]
      else:
        row['relative_error'] = error
        if outputs is not None:
          for number, value in enumerate(stack.inputs()):
            outputs[outputs_key(case, number)] = value
          outputs[outputs_key(case, 'output')] = output
    took = interleaved_us(programs, layers, config.calls, config.repeats)
  least = roofline_us(case, report.results.device()[1])
  for name, times, program in zip(('xla_', ''), took, programs, strict=False):
    median = float(np.median(times))
    row |= {
      f'{name}time_ms': median / 1e3,
      f'{name}time_ms_low': min(times) / 1e3,
      f'{name}time_ms_high': max(times) / 1e3,
      f'{name}bytes_per_s': 1e6 * case.bytes / median,
    }
    if least is not None:
      row[f'{name}roofline_fraction'] = least / median
    if (busy := device_ms(program)) is not None:
      row[f'{name}busy_ms'] = busy / layers
  if 'time_ms' in row:
    row['speedup_vs_xla'] = row['xla_time_ms'] / row['time_ms']
  return row


def device_ms(program) -> float | None:
  """Milliseconds of the device's operations alone: their launches, which may
  take longer, are not in."""
  with tempfile.TemporaryDirectory() as folder:
    profile.record(folder, program)
    return profile.busy_ms(folder)


def show(table: list[dict]) -> None:
  """Prints the rows: microseconds of a layer."""

  def cell(row, key, form='{:.3g}', scale=1.0):
    return form.format(scale * row[key]) if key in row else '-'

  def us(row, name):
    took = cell(row, f'{name}time_ms', '{:.4g}', 1e3)
    busy = cell(row, f'{name}busy_ms', scale=1e3)
    return took if busy == '-' else f'{took} ({busy})'

  lines = [
    {
      'op': row['op'].replace('block_', ''),
      'shape': row['shape'],
      'rows': str(row['rows']),
      'XLA us': us(row, 'xla_'),
      'kernel us': us(row, ''),
      'speed-up': cell(row, 'speedup_vs_xla', '{:.2f}'),
      'XLA roof': cell(row, 'xla_roofline_fraction', '{:.0%}'),
      'roof': cell(row, 'roofline_fraction', '{:.0%}'),
      'error': cell(row, 'relative_error', '{:.1e}'),
    }
    for row in table
  ]
  report.table.print_columns(lines, names=3)
  if jax.default_backend() == 'cpu':
    print('kernels are interpreted on a CPU: only their errors mean something')
  else:
    print(
      'us: of a layer, launches included (its operations alone); roof: share '
      "of the chip's limits"
    )
  for row in table:
    if 'failed' in row:
      print(f'{row["op"]} {row["shape"]} failed: {row["failed"]}')


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'repeats', 'calls')
  for op in config.ops:
    if op not in OPS:
      raise InputError(f'ops has {op!r}, expected {", ".join(OPS)}')
  if not config.ops:
    raise InputError('ops is empty, expected at least one')
  common.results(config, 'kernel_bench')
  table = []
  outputs = {'device_kind': report.results.device()[1]}
  for op in config.ops:
    for case in cases(op, config.toy):
      if config.shapes and case.shape not in config.shapes:
        continue
      print(f'{case.op} {case.shape}: compiling and timing', file=sys.stderr)
      kept = outputs if config.outputs else None
      table.append(measure(case, config, kept))
      result = report.results.build(
        'kernel_bench', 'synthetic', table, config=config.to_dict(),
        started=started,
      )  # fmt: skip
      # After each, so that a failure loses one only.
      path = report.results.write(result, config.name, root=config.results)
      jax.clear_caches()
  if not table:
    raise InputError(f'shapes = {config.shapes}: no operation has one of them')
  print(f'synthetic (random weights) on {report.results.device()[0]}\n')
  show(table)
  if config.outputs:
    arrays = path.with_suffix('.npz')
    np.savez_compressed(arrays, **outputs)
    print(arrays)
  print(path)


if __name__ == '__main__':
  common.run(main)
