"""What `test_sharding.py` runs in a process with eight host devices.

Not collected by itself: the number of devices is fixed once JAX has started.
"""

import collections
import dataclasses
import functools
import math
import re
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from configs import decode_smollm2
from experiments import decode as binary
from spinejax import sharding
from spinejax.decode import acceptance, loop
from spinejax.decode import round as rounds
from spinejax.decode.batch import Settings, check
from spinejax.decode.generate import generate, start
from spinejax.decode.schedule import PLAIN, Schedule
from spinejax.decode.scheduler import Scheduler, Scheduling
from spinejax.drafters.base import DraftModel, History, TargetView
from spinejax.drafters.dspine import DSpineConfig, dspine
from spinejax.drafters.factored import make_tables
from spinejax.drafters.loading import plain_model
from spinejax.prompts import PromptSet
from spinejax.report import results
from spinejax.target.config import TargetConfig
from spinejax.target.loading import Target, load_target
from spinejax.target.model import forward, init_cache, random_params, unembed
from spinejax.top import top_k
from spinejax.verify import audit, sampling
from spinejax.verify.sampling import Sampling, Stream, round_keys
from tests.compilations import COMPILATIONS
from tests.decode import toy

V, D, LAYERS, DRAFT_LAYERS = 256, 64, 2, 1
SHAPE = dict(vocab=V, width=D, heads=16, kv_heads=8, head_dim=8, ffn=128)
PROMPTS = toy.prompts(5, 40, 100, 7)
B, K, N = len(PROMPTS), 5, 4
# Each device sends its largest: with 64 of them all of this small vocabulary.
sampling._FEW = 2
MESHES = ('model=8', 'data=2,model=4')
DECODED = (
  ('model=8', 'plain'),
  ('model=8', 'dspine'),
  ('data=2,model=4', 'dspine'),
)
COLLECTIVE = re.compile(
  r' = (?P<result>.*?) (?P<kind>all-reduce|all-gather|all-to-all|'
  r'reduce-scatter|collective-permute)(-start)?\('
)
SAMPLING = {
  'greedy': dict(temperature=0.0),
  'sampled': dict(temperature=(0.7, 1.0, 0.0, 0.9), top_p=(0.9, 1, 1, 1)),
}


@functools.cache
def target(mesh: str = '', **shape) -> Target:
  """A random target of 8 groups of heads, on a mesh."""
  cfg = TargetConfig(
    'qwen3', layers=LAYERS, qk_norm=True, max_position=512, **SHAPE | shape
  )
  params = toy.random_weights(random_params, cfg, seed=4)
  head_VD = np.asarray(params.head_VD)
  params = sharding.shard(params, sharding.make_mesh(mesh))
  return Target('toy', cfg, params, toy.Ids(), head_VD)


@functools.cache
def drafter(name: str, mesh: str = '', factored: bool = False) -> DraftModel:
  if name == 'plain':
    return plain_model()
  cfg = DSpineConfig(
    layers=DRAFT_LAYERS, block=K, mask_id=7, taps=(-1, 0), rank=32, message=24,
    candidates=N, **SHAPE,
  )  # fmt: skip
  params = toy.random_dspine(cfg, target().head_VD, seed=5)
  if factored:
    tables = make_tables(cfg, params, target().params.head_VD)
    params = dataclasses.replace(params, tables=tables)
  params = sharding.shard(params, sharding.make_mesh(mesh))
  return DraftModel(dspine(cfg), params)


def decode(mesh: str, name: str, how: str, **more):
  """What a batch decodes to, as lists."""
  done = generate(
    target(mesh), drafter(name, mesh), PROMPTS, max_new_tokens=12, capacity=128,
    stop_ids=(V - 1,), seed=3, **SAMPLING[how] | more,
  )  # fmt: skip
  return [
    (x.tokens.tolist(), x.rounds, x.accepted_hist.tolist())
    for x in done.completions
  ]


one_device = functools.cache(functools.partial(decode, ''))


@pytest.fixture(autouse=True)
def donation_fails_aloud():
  """JAX warns where donated buffers were not usable."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    yield


@pytest.mark.parametrize('how', SAMPLING)
@pytest.mark.parametrize('mesh, name', DECODED)
def test_tokens_are_those_of_one_device(mesh, name, how):
  assert decode(mesh, name, how) == one_device(name, how)
  before, parts = len(COMPILATIONS), []
  decode(mesh, name, how, stream=parts.append, stream_rounds=2)
  assert len(parts) > 1
  assert len(COMPILATIONS) == before


@pytest.mark.parametrize(
  'mesh, how',
  (
    ('model=8', dict(schedule=Schedule.fill(2 * B))),
    ('data=2,model=4', dict(budget=PLAIN)),
  ),
)
def test_rounds_that_verify_less(mesh, how):
  """Packed ones, and plain ones that feed the drafter."""
  fixed, (sampling, _) = loop_arguments(mesh, 'dspine', 'greedy')
  state = fixed[-1]
  for _ in range(-(-max(map(len, PROMPTS)) // 64)):
    state = loop.prefill_chunk(*fixed[:-1], state, 64)
  if 'schedule' in how:
    how = sharding.shard(how, target(mesh).mesh)
  state = loop.run_rounds(*fixed[:-1], state, sampling, jnp.int32(50), **how)
  found = jax.device_get(state)
  answers = [
    row[len(prompt) : length].tolist()
    for row, prompt, length in zip(
      found.tokens_BT, PROMPTS, found.length_B, strict=True
    )
  ]
  assert answers == [x[0] for x in one_device('dspine', 'greedy')]
  # They are rounds that verify less: fewer tokens of each than padded ones.
  rounds_B = [x[1] for x in one_device('dspine', 'greedy')]
  assert (found.rounds_B >= rounds_B).all()
  if how.get('budget') != PLAIN:
    assert 0 < found.judged_BS.sum() < found.rounds_B.sum() * (K - 1)


def loop_arguments(mesh: str, name: str, how: str):
  of, draft = target(mesh), drafter(name, mesh)
  state = start(of, draft, PROMPTS, 12, 3, (V - 1,), 128)
  sampling = Sampling.make(B, **SAMPLING[how])
  sampling = sharding.shard(sampling, of.mesh)
  params = rounds.Params(of.params, draft.params)
  fixed = (of.cfg, draft.drafter, params, state)
  return fixed, (sampling, jnp.int32(1))


def compiled(mesh: str, name: str, how: str = 'greedy'):
  """The loop that `decode` runs (it is not compiled again)."""
  fixed, more = loop_arguments(mesh, name, how)
  return loop.run_rounds.lower(*fixed, *more).compile()


def collectives(program) -> list[tuple[str, int, str]]:
  """Kind, elements of the result and origin of each collective."""
  found = []
  for line in program.as_text().splitlines():
    match = COLLECTIVE.search(line)
    if match:
      arrays = re.findall(r'[a-z0-9]+\[([0-9,]*)\]', match['result'])
      sizes = [math.prod(int(n) for n in x.split(',') if n) for x in arrays]
      origin = re.search(r'op_name="([^"]*)"', line)
      found.append((match['kind'], sum(sizes), origin[1] if origin else ''))
  return found


@pytest.mark.parametrize('mesh, name', DECODED)
def test_a_round_costs_few_and_small_collectives(mesh, name):
  found = collectives(compiled(mesh, name))
  kinds = collections.Counter(kind for kind, _, _ in found)
  block = name == 'dspine'
  data, model = sharding.make_mesh(mesh).devices.shape
  rows = B // data * (K if block else 1)
  # Two of [B, K, D] a layer; one for the embedding; of the whole loop one to
  # know whether all requests are done, where they are split.
  reduced = 2 * LAYERS + 1 + (data > 1)
  if block:  # its layers; anchor, mask and features; candidates
    reduced += 2 * DRAFT_LAYERS + 3
  assert kinds == {'all-reduce': reduced, 'all-gather': 4 if block else 2}
  layers = [x for x in found if 'verify/dot_general' in x[2]]
  assert [size for _, size, _ in layers] == [rows * D] * 2 * LAYERS
  # The best of each device: not the logits, of rows x V, nor the cache.
  gathered = max(size for kind, size, _ in found if kind == 'all-gather')
  assert gathered <= rows * model * N


def test_sampling_gathers_logits_only_where_they_are_sorted():
  found = collectives(compiled('model=8', 'dspine', 'sampled'))
  for kind, size, origin in found:
    if kind == 'all-gather' and size >= B * K * V // 8:
      assert '/cond/branch_3_fun/' in origin  # top-p is asked for
    assert kind in ('all-gather', 'all-reduce')


def test_prefill_gathers_nothing():
  fixed, _ = loop_arguments('model=8', 'dspine', 'greedy')
  found = collectives(loop.prefill_chunk.lower(*fixed).compile())
  # Embedding, the features' projection; of the last layer only K and V count.
  assert [kind for kind, _, _ in found] == ['all-reduce'] * (2 * LAYERS)


@pytest.mark.parametrize('mesh', MESHES)
def test_logits_and_features_are_close(mesh):
  @functools.partial(jax.jit, static_argnums=0)
  def run(cfg, params, tokens_BQ, cache):
    out = forward(cfg, params, tokens_BQ, cache, (-1, 0))
    return unembed(out.hidden_BQD, params.head_VD), out.features_BQP, out.cache

  found = []
  tokens_BQ = np.random.default_rng(0).integers(0, V, (B, 9))
  for of in (target(), target(mesh)):
    cache = sharding.shard(init_cache(of.cfg, B, 32), of.mesh)
    found.append(jax.device_get(run(of.cfg, of.params, tokens_BQ, cache)))
  chex.assert_trees_all_close(*found, atol=1e-5)


def test_proposals_are_those_of_one_device():
  """In the factored form, whose tables are split along V."""

  @functools.partial(jax.jit, static_argnums=0)
  def propose(draft, params, state, sampling):
    return draft.propose(
      draft.cfg,
      params.drafter,
      TargetView(params.target.embed_VD, params.target.head_VD),
      state.draft_cache,
      History(state.tokens_BT, state.length_B),
      state.anchor_B,
      round_keys(state.seed_B, state.length_B, Stream.DRAFT),
      sampling,
    )

  found = []
  for mesh in ('', 'model=8'):
    fixed, more = loop_arguments(mesh, 'dspine', 'sampled')
    draft = drafter('dspine', mesh, factored=True)
    params = dataclasses.replace(fixed[2], drafter=draft.params)
    done = propose(draft.drafter, params, fixed[3], more[0])
    found.append(jax.device_get(done))
  one, other = found
  np.testing.assert_array_equal(one.tokens_BS, other.tokens_BS)
  np.testing.assert_array_equal(one.law.ids_BSN, other.law.ids_BSN)
  chex.assert_trees_all_close(one.law, other.law, atol=1e-5)


@pytest.mark.parametrize('mesh', ('model=8', 'data=4,model=2'))
def test_top_k_of_a_split_vocabulary(mesh):
  # Whole chunks of one device, and ties within and across devices.
  logits = np.random.default_rng(0).normal(size=(4, 3, 8 * 700))
  logits = np.rint(4 * logits).astype(np.float32)
  placed = sharding.shard({'x_BSV': logits}, sharding.make_mesh(mesh))['x_BSV']
  found = jax.jit(top_k, static_argnums=1)(placed, 5)
  for got, want in zip(found, jax.lax.top_k(logits, 5), strict=True):
    assert got.sharding.is_equivalent_to(
      jax.NamedSharding(placed.sharding.mesh, P('data')), got.ndim
    )
    np.testing.assert_array_equal(got, want)


def test_every_device_holds_its_part():
  mesh = 'data=2,model=4'
  (_, _, params, state), _ = loop_arguments(mesh, 'dspine', 'greedy')

  def share(x):  # of one device
    return x.addressable_shards[0].data.size / x.size

  layer = params.target.layers[0]
  large = params.target.embed_VD, layer.down_DF, params.drafter.codes_VR
  assert {share(x) for x in large} == {1 / 4}
  assert share(state.draft_cache.v[0]) == 1 / 8
  assert share(layer.mlp_norm_D) == 1


def test_what_can_be_scheduled(refused):
  """Rows of requests on several devices are not packed, whoever chooses."""
  settings, mesh = Settings(slots=2), 'data=2,model=4'

  def ways(shares):
    scheduling, draft = Scheduling(shares), drafter('dspine', mesh)
    return Scheduler(scheduling, target(mesh), draft, settings).ways

  assert list(ways(None)[2]) == [PLAIN, 2 * K]
  with refused('budget = 5: requests lie on the mesh axis data=2, over ...'):
    ways((0.5,))


def test_tied_tables_stay_one_array():
  params = target().params
  tied = dataclasses.replace(params, head_VD=params.embed_VD)
  tied = sharding.shard(tied, sharding.make_mesh('model=8'))
  assert tied.head_VD is tied.embed_VD


def test_an_audit_of_a_batch_that_does_not_divide():
  answers = [np.array(x[0]) for x in one_device('plain', 'greedy')[:3]]
  found = [
    audit.gaps(target(mesh), PROMPTS[:3], answers, 128)
    for mesh in ('', 'data=2,model=4')
  ]
  chex.assert_trees_all_close(*found, atol=1e-5)
  assert max(x.max() for x in found[1]) == 0


def test_what_does_not_divide_is_refused(golden, refused):
  with refused(
    'mesh: key/value heads (3 in qkv_GJCD) cannot be split evenly over model=2'
  ):
    load_target('smollm2-135m', mesh=sharding.make_mesh('model=2'))
  with refused('a batch of 3 cannot be split evenly over the mesh axis data=2'):
    generate(target('data=2,model=4'), plain_model(), PROMPTS[:3])
  for field in ('slots', 'readers', 'prefix_blocks'):
    sizes = dict(slots=2, readers=2, prefix_blocks=2) | {field: 3}
    with refused(f'3 {field} cannot be split evenly over the mesh axis data=2'):
      check(target('data=2,model=4'), plain_model(), Settings(**sizes))
  how = dict(temperatures=(0.0,), max_new_tokens=4, batch=2)
  with refused(
    '3 prompts in batches of 2: one of 1 cannot be split evenly over the mesh '
    'axis data=2'
  ):  # the last, which comes after much decoding
    three = PromptSet('three', (('a',),) * 3)
    acceptance.check(target('data=2,model=4'), [three], **how)
  with refused("mesh = 'model=2,data=5' needs 10 devices, there are 8"):
    sharding.make_mesh('model=2,data=5')
  with refused("mesh = Mesh('x': 8, ...), expected what make_mesh returns"):
    load_target(str(golden / 'qwen3'), mesh=jax.make_mesh((8,), ('x',)))


def test_the_binary(golden, tmp_path):
  (tmp_path / 'mine.txt').write_text('Why?\n\nName a sea.\n')
  config = decode_smollm2.get_config('demo')
  config.update(
    target=str(golden / 'qwen3'), drafters=('ngram',), block=4, batch=2,
    prompts=f'{tmp_path}/mine.txt', max_new_tokens=6, mesh='data=2,model=2',
    show=0, results=str(tmp_path), inspect=0,
  )  # fmt: skip
  with warnings.catch_warnings():
    warnings.simplefilter('default')
    binary.main(config)
  found = results.load(tmp_path / 'decode' / f'{config.name}.json')
  plain, ngram = found['metrics']
  assert (ngram['total'], ngram['wrong']) == (2, 0)
