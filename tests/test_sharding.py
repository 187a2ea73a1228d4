"""Where the rules put every array; all else is tested on eight devices."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from spinejax import sharding
from spinejax.decode.state import init_state
from spinejax.drafters.dflash2 import DFlash2Config, random_dflash2
from spinejax.drafters.domino import DominoConfig, random_domino
from spinejax.drafters.dspark import DSparkConfig, random_dspark
from spinejax.drafters.dspine import DSpineConfig, dspine
from spinejax.drafters.factored import make_tables
from spinejax.target.config import TargetConfig
from spinejax.target.model import random_params
from spinejax.verify.sampling import Sampling
from tests.decode import toy

ROOT = pathlib.Path(__file__).parents[1]
SHAPE = dict(
  vocab=64, width=32, layers=1, heads=8, kv_heads=4, head_dim=8, ffn=48
)
CFG = TargetConfig('qwen3', qkv_bias=True, qk_norm=True, **SHAPE)
DRAFT = DSpineConfig(
  block=5, mask_id=7, taps=(-1,), rank=12, message=10, candidates=4, **SHAPE
)
BLOCK = dict(block=5, mask_id=7, taps=(-1,), **SHAPE)
OTHERS = (
  (DFlash2Config(**BLOCK), random_dflash2),
  (DominoConfig(**BLOCK), random_domino),
  (DSparkConfig(markov_head='rnn', **BLOCK), random_dspark),
)
KEY = jax.random.key(0)
MESH = AbstractMesh((2, 4), sharding.AXES, (AxisType.Auto,) * 2)
COPIED = {
  'attn_norm_D', 'mlp_norm_D', 'norm_D', 'hidden_norm_D', 'q_norm_C',
  'k_norm_C', 'readouts_RD', 'writes_DM', 'message_MR', 'receiver_MR',
  'predecessor_MR', 'bias_M', 'gram_MM', 'stop_ids_E',
  'base_2WD', 'dynamic_2WYD', 'hidden_RD', 'input_3ZD', 'recurrent_3ZZ',
  'down_EI', 'mix_OI', 'mix_O', 'confidence_1I', 'confidence_1',
}  # fmt: skip
BY_FIRST_AXIS = {
  'model': {
    'embed_VD', 'head_VD', 'qkv_GJCD', 'qkv_bias_GJC', 'gate_up_F2D',
    'codes_VR', 'write_VM', 'message_VM', 'gate_VM',
    'before_VR', 'after_VR', 'before_VE', 'up_VE',
  },
  'data': {
    'tokens_BT', 'length_B', 'prompt_length_B', 'cap_B', 'done_B', 'stops_B',
    'anchor_B', 'pending_count_B', 'seed_B', 'accepted_hist_BK', 'rounds_B',
    'judged_BS', 'passed_BS', 'temperature_B', 'top_k_B', 'top_p_B',
  },
}  # fmt: skip
BY_OTHERS = {
  'out_DX': P(None, 'model'),
  'down_DF': P(None, 'model'),
  'fc_DP': P(None, 'model'),
  'pending_BKP': P('data', None, 'model'),
  'k': P('data', 'model', None, None),
  'v': P('data', 'model', None, None),
}


def everything():
  """All that decoding keeps on the devices."""
  target = jax.eval_shape(
    lambda key: random_params(CFG, key), jax.random.key(0)
  )
  head_VD = np.random.default_rng(0).normal(size=(CFG.vocab, CFG.width))
  spine = toy.random_dspine(DRAFT, head_VD, seed=0)
  tables = jax.eval_shape(lambda: make_tables(DRAFT, spine, head_VD))
  others = [
    jax.eval_shape(lambda key, cfg=cfg, make=make: make(cfg, key), KEY)
    for cfg, make in OTHERS
  ]
  B = jnp.ones((2,), jnp.int32)
  state = jax.eval_shape(
    lambda: init_state(CFG, dspine(DRAFT), jnp.ones((2, 16), int), B, B, B, B)
  )
  return target, spine, tables, others, state, Sampling.make(2)


def test_every_array_has_its_place():
  found = {}
  for path, where in jax.tree.leaves_with_path(
    sharding.shardings(everything(), MESH)
  ):
    name = [key.name for key in path if hasattr(key, 'name')][-1]
    assert found.setdefault(name, where.spec) == where.spec
  expected = dict(BY_OTHERS)
  for name, spec in found.items():
    for axis, names in BY_FIRST_AXIS.items():
      if name in names:
        expected[name] = P(axis, *[None] * (len(spec) - 1))
    if name in COPIED:
      expected[name] = P(*[None] * len(spec))
  assert found == expected


def test_what_does_not_tell_its_axes_is_copied():
  tree = [{'weights': jnp.ones((3, 3)), 'x_BT': jnp.ones(3)}, (jnp.ones(5),)]
  found = jax.tree.leaves(sharding.shardings(tree, MESH))
  assert [x.spec for x in found] == [P()] * 3


@pytest.mark.parametrize(
  'spec',
  ('8', 'model', 'model=', 'model=0', 'model=-1', 'model=2,', 'model=2,model=1',
   'tensor=2', 'model=2;data=2', 'Model=2', 'model=1.5', ' '),
)  # fmt: skip
def test_a_mesh_that_is_not_understood(spec, refused):
  with refused(
    f'mesh = {spec!r}, expected sizes of data and model such as '
    "'model=2' or 'data=2,model=4'"
  ):
    sharding.make_mesh(spec)


def test_a_mesh_that_is_no_text(refused):
  with refused('mesh = 2, expected sizes of data and model such as ...'):
    sharding.make_mesh(2)


def test_a_mesh_of_more_devices_than_there_are(refused):
  have = jax.device_count()
  spec = f'model={have + 1}'
  with refused(f"mesh = '{spec}' needs {have + 1} devices, there are {have}"):
    sharding.make_mesh(spec)


def test_an_axis_that_does_not_divide(refused):
  with refused(
    'mesh: the feed-forward width (6 in down_DF) cannot be split evenly over '
    'model=4'
  ):
    sharding.shardings([{'down_DF': jnp.ones((8, 6))}], MESH)
  with refused('mesh = model=2, expected what make_mesh returns'):
    sharding.shardings({}, 'model=2')


def test_one_device():
  assert sharding.make_mesh('') is None
  tree = {'x_BV': np.ones((3, 5))}
  assert sharding.mesh_of(sharding.shard(tree, None)['x_BV']) is None
  mesh = sharding.make_mesh('model=1')
  assert sharding.mesh_of(sharding.shard(tree, mesh)['x_BV']) == mesh
  x = jnp.ones(3)
  assert sharding.hint(x, 'V') is x
  assert sharding.constrain(tree) is tree


def test_on_eight_devices():
  """In a process of its own, where JAX starts with eight host devices."""
  flags = '--xla_force_host_platform_device_count=8'
  env = {k: v for k, v in os.environ.items() if not k.startswith('PYTEST_')}
  env['XLA_FLAGS'] = flags
  done = subprocess.run(
    [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
     'tests/eight_devices.py', 'tests/eight_devices_train.py'],
    cwd=ROOT, env=env, capture_output=True, text=True, timeout=600,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  assert 'passed' in done.stdout and 'skipped' not in done.stdout
