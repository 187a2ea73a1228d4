"""Kernels and rounds that ran: on this machine, and on another by a file."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from experiments.kernel_bench import measure
from experiments.kernel_cases import Case, cases
from experiments.kernel_timing import outputs_key, relative_error
from experiments.random_weights import random_drafter, random_target
from spinejax import report
from spinejax.decode.timing import Bench
from spinejax.drafters.dspine import DSpineConfig
from spinejax.errors import InputError
from spinejax.sharding import make_mesh, shard
from spinejax.target.config import TargetConfig

_ROUNDS = 8  # of a call that is timed


def check(config) -> None:
  """Refuses a platform that this machine is not."""
  backend = jax.default_backend()
  if config.platform not in ('', backend):
    raise InputError(
      f'platform = {config.platform!r}, but JAX runs on {backend!r} here'
    )
  if config.mesh and not config.platform:
    raise InputError('mesh: only of a round that runs here; give platform')


def of_case(case: Case, config) -> dict:
  """A kernel, timed on this machine's device."""
  kind = report.results.device()[1]
  return measure(case, config) | dict(
    label='synthetic', platform=config.platform, device_kind=kind,
    measured_on=kind,
  )  # fmt: skip


def of_round(config, cfg: TargetConfig, shape: DSpineConfig) -> dict:
  """A round with random weights, timed on this machine's devices."""
  mesh = make_mesh(config.mesh)
  params = shard(random_target(cfg, jnp.bfloat16), mesh)
  draft = random_drafter('dspine', shape, jnp.bfloat16)
  draft = dataclasses.replace(draft, params=shard(draft.params, mesh))
  bench = Bench(
    cfg, params, batch=config.batch, capacity=config.capacity, rounds=_ROUNDS,
    context=config.capacity - shape.block - _ROUNDS,
  )  # fmt: skip
  (times,) = bench.time(bench.compile([draft]), config.repeats)
  kind = report.results.device()[1]
  return dict(
    op='round', shape=f'{config.target}, {cfg.layers} layers',
    rows=config.batch * shape.block, label='synthetic',
    platform=config.platform,
    device_kind=kind, measured_on=kind, mesh=config.mesh,
    time_ms=times.median, time_ms_low=times.low, time_ms_high=times.high,
  )  # fmt: skip


def agreement(path: str) -> list[dict]:
  """TPU kernels, interpreted, beside what another device's gave.

  Args:
    path: arrays that `kernel_bench` wrote (`--config.outputs`), or ''.

  Raises:
    InputError: there is no such file, or nothing in it.
  """
  if not path:
    return []
  try:
    with np.load(path) as file:
      found = {key: file[key] for key in file.files}
    kind = str(found['device_kind'])
  except (OSError, ValueError, KeyError) as error:
    raise InputError(
      f'outputs = {path!r}: no arrays of kernel_bench ({error})'
    ) from None
  rows = []
  for op in dict.fromkeys(key.split('/')[0] for key in found if '/' in key):
    for toy in (True, False):
      for case in cases(op, toy):
        if outputs_key(case, 'output') in found:
          rows.append(_agreement(case, found, kind))
  return rows


def _agreement(case: Case, found: dict, kind: str) -> dict:
  given = [
    jnp.asarray(found[outputs_key(case, i)], x.dtype)
    for i, x in enumerate((*case.shared, *case.own))
  ]
  size = len(case.shared)
  x, own = tuple(given[:size]), tuple(given[size:])
  other = found[outputs_key(case, 'output')]
  exact = case.reference(
    *jax.tree.map(lambda y: y.astype(jnp.float32), (x, own))
  )
  with pltpu.force_tpu_interpret_mode():
    got = case.kernels['tpu'](x, own, case.chosen['tpu'])
  got, exact = (np.asarray(y.astype(jnp.float32)) for y in (got, exact))
  return dict(
    op=case.op, shape=case.shape, rows=case.rows, label='synthetic',
    platform='tpu, interpreted', device_kind='none', compared_with=kind,
    relative_difference=relative_error(got, other),
    relative_error=relative_error(got, exact),
    other_relative_error=relative_error(other, exact),
  )  # fmt: skip
