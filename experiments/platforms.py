"""Kernels and the whole round on GPUs beside TPUs that are not there."""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments import common, platforms_here
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
from spinejax.target.config import TargetConfig
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


def round_shape(config) -> tuple[TargetConfig, DSpineConfig]:
  """The target of the round, cut to a few layers, and the drafter."""
  full = target_config(config.target)
  cfg = dataclasses.replace(full, layers=config.layers)
  shape = drafter_config(
    DSpineConfig, full, mask_id=0, causal=True, **config.drafter
  )
  shape = dataclasses.replace(
    shape, taps=tap_ids(cfg.layers, config.drafter.taps)
  )
  return cfg, shape


def of_round(config, target: str) -> dict:
  """The whole round, compiled."""
  cfg, shape = round_shape(config)
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
  platforms = dict.fromkeys(row['platform'] for row in table)
  colours = {name: f'C{i}' for i, name in enumerate(platforms)}
  for row in table:
    at = names.index(f'{row["op"]}\n{row["shape"]}')
    for key, mark in marks.items():
      if row.get(key):
        axes.plot(at, row[key], mark, color=colours[row['platform']])
  for name in platforms:
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
  if not (config.platforms or config.platform or config.outputs):
    raise InputError('platforms is empty, expected at least one')
  platforms_here.check(config)
  for target in config.platforms:
    topologies.device(target)  # before the first takes minutes
  folder = common.results(config, 'platforms')
  measured = measured_rows(config.measured)
  agreed = platforms_here.agreement(config.outputs)
  table = []

  def fill(name, of_case, of_round) -> None:
    for op in config.ops:
      for case in cases(op, config.toy):
        print(f'{name}: {op} {case.shape}', file=sys.stderr)
        table.append(of_case(case))
    if config.round:
      print(f'{name}: round', file=sys.stderr)
      table.append(of_round())
    save()

  def save() -> pathlib.Path:
    # After each platform, so that a failure loses one only.
    compiled = 'compiled for ' + ', '.join(config.platforms)
    device = dict(device_name=compiled, device_kind='none')
    result = report.results.build(
      'platforms', 'compiled' if config.platforms else 'synthetic',
      table + agreed, config=config.to_dict(), started=started,
      **device if config.platforms else {},
    )  # fmt: skip
    return report.results.write(result, config.name, root=config.results)

  if config.platform:
    fill(
      config.platform, lambda case: platforms_here.of_case(case, config),
      lambda: platforms_here.of_round(config, *round_shape(config)),
    )  # fmt: skip
  for target in config.platforms:
    fill(
      target, lambda case, at=target: of_case(case, at, measured),
      lambda at=target: of_round(config, at),
    )  # fmt: skip
  path = save()
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
  for row in agreed:
    print(
      f'{row["op"]} {row["shape"]}: TPU, interpreted, and '
      f'{row["compared_with"]} differ by {row["relative_difference"]:.1e}; '
      f'errors {row["relative_error"]:.1e} and '
      f'{row["other_relative_error"]:.1e}'
    )
  print(figure)
  print(path)


if __name__ == '__main__':
  common.run(main)
