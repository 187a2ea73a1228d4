"""Kernels and the whole round on GPUs beside TPUs that are not there."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments import common
from experiments.kernel_cases import OPS, Case, cases
from experiments.kernel_timing import LIMITS, roofline_us, stacked
from spinejax import report
from spinejax.compat import topologies
from spinejax.decode import round as decode_round
from spinejax.decode.state import init_state
from spinejax.drafters.backbone import tap_ids
from spinejax.drafters.dspine import DSpineConfig
from spinejax.drafters.factored import make_tables
from spinejax.drafters.shape import drafter_config
from spinejax.errors import InputError
from spinejax.target.loading import target_config
from spinejax.target.model import random_params
from spinejax.train.objectives import OBJECTIVES
from spinejax.verify.sampling import Sampling


def round_program(cfg, shape: DSpineConfig, batch: int, capacity: int):
  """What a round of DSpine takes, as shapes in bfloat16: drafter, parameters,
  state, sampling."""
  objective = OBJECTIVES['dspine']
  drafter = objective.drafter(shape)

  def arguments():
    target = random_params(cfg, jax.random.key(0), jnp.bfloat16)
    axes_DR = jnp.zeros((cfg.width, shape.rank))
    weights = objective.init(shape, jax.random.key(1), axes_DR)
    params = objective.params(weights, jnp.zeros((cfg.vocab, shape.rank)))
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    tables = make_tables(shape, params, target.head_VD)
    params = dataclasses.replace(params, tables=tables)
    counts_B = jnp.ones((batch,), jnp.int32)
    state = init_state(
      cfg, drafter, jnp.zeros((batch, capacity), jnp.int32), counts_B,
      counts_B, jnp.zeros((batch,), jnp.uint32), jnp.zeros((1,), jnp.int32),
      dtype=jnp.bfloat16,
    )  # fmt: skip
    return decode_round.Params(target, params), state, Sampling.make(batch)

  return drafter, *jax.eval_shape(arguments)


def analysis(compiled, kind: str) -> dict:
  """What a compiler says of its program; CUDA's says no time."""
  memory = compiled.memory_analysis()
  row = dict(
    device_kind=kind,
    temporary_bytes=memory.temp_size_in_bytes,
    argument_bytes=memory.argument_size_in_bytes,
  )
  seconds = (compiled.cost_analysis() or {}).get('optimal_seconds', 0.0)
  if seconds > 0:  # with a loop it may be anything
    row['compiled_time_ms'] = 1e3 * seconds
  return row


def of_case(case: Case, target: str, measured: dict) -> dict:
  """A kernel on a platform: XLA's reference as compiled, the kernel where it
  was measured, and the limit of the chip."""
  kind = topologies.device(target).device_kind
  carry, *shared = case.shared
  row = dict(op=case.op, shape=case.shape, rows=case.rows, platform=target)
  given = carry, tuple(shared), (case.own,)
  row |= analysis(
    topologies.compile_for(target, stacked(case, case.reference), *given), kind
  )
  platform = 'cuda' if target == 'h100' else 'tpu'
  body = case.kernels.get(platform)
  if body is not None:
    chosen = case.chosen[platform]
    kernel = stacked(case, lambda x, own: body(x, own, chosen))
    program = topologies.compile_for(target, kernel, *given)
    memory = program.memory_analysis()
    row['kernel_temporary_bytes'] = memory.temp_size_in_bytes
  row['modelled_time_ms'] = roofline_us(case, kind) / 1e3
  if target == 'h100':
    row |= measured.get((case.op, case.shape), {})
  return row


def measured_rows(path: str) -> dict:
  """Times of `kernel_bench` by operation and shape."""
  if not path:
    return {}
  result = report.results.load(path)
  return {
    (row['op'], row['shape']): dict(
      measured_on=result['device_kind'],
      time_ms=row.get('time_ms'),
      xla_time_ms=row['xla_time_ms'],
    )
    for row in result['metrics']
  }


def of_round(config, target: str) -> dict:
  """The whole round, for a target cut to a few layers."""
  full = target_config(config.target)
  cfg = dataclasses.replace(full, layers=config.layers)
  shape = drafter_config(
    DSpineConfig, full, mask_id=0, causal=True, **config.drafter
  )
  shape = dataclasses.replace(
    shape, taps=tap_ids(cfg.layers, config.drafter.taps)
  )
  program = round_program(cfg, shape, config.batch, config.capacity)
  step = jax.jit(decode_round.step, static_argnums=(0, 1))
  compiled = topologies.compile_for(target, step, cfg, *program)
  kind = topologies.device(target).device_kind
  rate = LIMITS[kind][0]
  read = sum(
    x.size * x.dtype.itemsize for x in jax.tree.leaves(program[1].target)
  )
  return dict(
    op='round', shape=f'{config.target}, {cfg.layers} layers',
    rows=config.batch * shape.block, platform=target,
    modelled_time_ms=1e3 * read / rate, **analysis(compiled, kind),
  )  # fmt: skip


def draw(table: list[dict]) -> Figure:
  """Milliseconds by platform: modelled, compiled, measured."""
  figure = Figure(figsize=(9, 4), layout='constrained')
  axes = figure.subplots()
  names = list(dict.fromkeys(f'{r["op"]}\n{r["shape"]}' for r in table))
  marks = dict(modelled_time_ms='_', compiled_time_ms='o', time_ms='*')
  colours = {name: f'C{i}' for i, name in enumerate(topologies.TARGETS)}
  for row in table:
    at = names.index(f'{row["op"]}\n{row["shape"]}')
    for key, mark in marks.items():
      if row.get(key):
        axes.plot(at, row[key], mark, color=colours[row['platform']])
  for name in dict.fromkeys(row['platform'] for row in table):
    axes.plot([], [], 's', color=colours[name], label=name)
  axes.set_yscale('log')
  axes.set_xticks(range(len(names)), names, fontsize=6, rotation=30)
  axes.set_ylabel('ms: - limit, o compiled, * measured')
  axes.legend()
  return figure


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'batch', 'capacity', 'layers')
  for field, known in (('platforms', topologies.TARGETS), ('ops', OPS)):
    for value in config[field]:
      if value not in known:
        raise InputError(f'{field} has {value!r}, expected {", ".join(known)}')
  if not config.platforms:
    raise InputError('platforms is empty, expected at least one')
  folder = common.results(config, 'platforms')
  measured = measured_rows(config.measured)
  table = []
  for target in config.platforms:
    for op in config.ops:
      for case in cases(op, config.toy):
        print(f'{target}: {op} {case.shape}', file=sys.stderr)
        table.append(of_case(case, target, measured))
    if config.round:
      print(f'{target}: round', file=sys.stderr)
      table.append(of_round(config, target))
    # After each platform, so that a failure loses one only.
    result = report.results.build(
      'platforms', 'compiled', table, config=config.to_dict(), started=started,
      device_name='compiled for ' + ', '.join(config.platforms),
      device_kind='none',
    )  # fmt: skip
    path = report.results.write(result, config.name, root=config.results)
  figure = folder / f'{config.name}.png'
  report.figures.save(draw(table), figure)
  keys = ('modelled_time_ms', 'compiled_time_ms', 'xla_time_ms', 'time_ms')
  report.table.print_columns(
    [
      {key: row[key] for key in ('op', 'shape', 'platform')}
      | {key: f'{row[key]:.3g}' if row.get(key) else '-' for key in keys}
      for row in table
    ],
    names=3,
  )
  print(figure)
  print(path)


if __name__ == '__main__':
  common.run(main)
