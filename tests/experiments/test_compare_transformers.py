"""The comparison with transformers: all of it that needs no torch."""

import collections
import dataclasses
import functools
import json
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from configs.compare_transformers import get_config
from experiments import compare_transformers as compare
from spinejax.decode.generate import generate
from spinejax.drafters.loading import plain_model
from spinejax.report import results
from spinejax.target.hf_dir import read_hf
from spinejax.target.loading import load_target
from spinejax.target.presets import preset
from tests.experiments import binaries

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'
FAMILIES = ('llama', 'qwen2', 'qwen3')
PROMPTS = ('Hi.', 'Name a sea.', 'Why?')
FLAG = '--config=configs/compare_transformers.py'


@pytest.mark.parametrize('family', FAMILIES)
def test_config_is_the_one_that_transformers_wrote(golden, family):
  cfg, _ = read_hf(golden / family)
  written = json.loads((golden / family / 'config.json').read_text())
  written.setdefault('head_dim', cfg.width // cfg.heads)  # Qwen2 has no field
  fields = compare.hf_config(cfg)
  assert fields == {name: written[name] for name in fields}


def test_config_without_a_model_in_transformers(refused):
  cfg = dataclasses.replace(preset('llama-3.2-1b'), qkv_bias=True)
  with refused(
    'target: transformers has no llama with qkv_bias True and qk_norm False'
  ):
    compare.hf_config(cfg)


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
@pytest.mark.parametrize('family', FAMILIES)
def test_weights_are_those_of_the_checkpoint(golden, family, dtype):
  """Fused when they were read, and here undone."""
  cfg, params = read_hf(golden / family)
  params = jax.tree.map(lambda x: jnp.asarray(x, dtype), params)
  found = compare.hf_weights(params)
  wanted = {}
  for file in (golden / family).glob('model*.safetensors'):
    wanted |= load_file(file)
  if cfg.tied:
    wanted['lm_head.weight'] = wanted['model.embed_tokens.weight']
  assert found.keys() == wanted.keys()
  for name, x in wanted.items():
    np.testing.assert_array_equal(found[name], x.astype(dtype), name)


def answers(*tokens, per_token, rounds=None):
  """Answers of these tokens, each of which took `per_token` seconds."""
  return [compare.Answer(t, rounds, per_token * len(t)) for t in tokens]


def test_rows():
  one, two = [5, 6, 7, 8], [5, 6, 9]
  table = compare.rows(
    {
      compare.BASELINE: answers(one, [5, 7], per_token=0.1),
      'plain': answers(one, two, per_token=0.05, rounds=4),
      'ngram': answers(one, two, per_token=0.025, rounds=2),
    },
    dataset='x',
  )
  static, plain, ngram = table
  assert [row['drafter'] for row in table] == [
    compare.BASELINE, 'plain', 'ngram',
  ]  # fmt: skip
  assert {row['dataset'] for row in table} == {'x'}
  assert {row['total'] for row in table} == {2}
  assert [row['tokens_per_s'] for row in table] == pytest.approx([10, 20, 40])
  # The second answer of the baseline is shorter: time alone would say less.
  assert plain['speedup_vs_static'] == pytest.approx(2)
  assert ngram['speedup_vs_static'] == pytest.approx(4)
  assert ngram['speedup_vs_static_low'] == pytest.approx(4)
  assert ngram['speedup_vs_static_high'] == pytest.approx(4)
  assert 'speedup_vs_static' not in static
  assert (static['agree'], static['common_prefix']) == (1, (4 + 1) / 2)
  assert (ngram['agree'], ngram['common_prefix']) == (2, (4 + 3) / 2)
  assert 'agree' not in plain
  assert ngram['tokens_per_round'] == pytest.approx(7 / 4)
  assert 'tokens_per_round' not in static
  assert static['emitted_by_prompt'] == [4, 2]
  assert static['seconds_by_prompt'] == pytest.approx([0.4, 0.2])


@pytest.mark.parametrize(
  'a, b, same',
  (([1, 2], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 4, 3], 1)),
)
def test_common_prefix(a, b, same):
  assert compare.common_prefix(a, b) == compare.common_prefix(b, a) == same


def test_systems_are_interleaved():
  asked = []

  def answer(name, ids):
    asked.append((name, ids))
    return [len(asked)], None

  systems = {name: functools.partial(answer, name) for name in 'ab'}
  found = compare.measure(systems, [[1], [2]], 'x')
  assert asked == [('a', [1]), ('b', [1]), ('a', [2]), ('b', [2])]
  assert [x.tokens for x in found['b']] == [[2], [4]]
  assert all(x.seconds > 0 for x in found['a'])


@pytest.fixture(scope='module')
def target():
  return load_target(str(TINY))


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'mine.txt').write_text('\n\n'.join(PROMPTS))
  config = get_config()
  config.update(
    target=str(TINY), drafters=('ngram',), block=4, dtype='float32', limit=0,
    prompts=str(tmp_path / 'mine.txt'), max_new_tokens=6, name='mine',
    results=str(tmp_path / 'results'),
  )  # fmt: skip
  return config


@pytest.fixture
def stub(monkeypatch, target):
  """`stub(**counters)`: spinejax plain in the place of torch and transformers.

  `compiled`: graphs at the start; `more`: graphs that each answer compiles;
  `skips`: graphs that are no CUDA graphs.
  """

  def install(compiled=1, more=0, skips=0):
    modules = [
      types.SimpleNamespace(__name__=name, __version__='9.9')
      for name in ('torch', 'transformers')
    ]
    monkeypatch.setattr(compare, 'libraries', lambda: modules)
    counters = {
      'stats': collections.Counter(unique_graphs=compiled),
      'inductor': collections.Counter(cudagraph_skips=skips),
    }

    def peer(torch, transformers, given, capacity, new):
      assert [torch, transformers] == modules

      def answer(ids):
        done = generate(
          given, plain_model(), [ids], max_new_tokens=new, capacity=capacity
        )
        counters['stats']['unique_graphs'] += more
        return done.completions[0].tokens.tolist(), None

      names = ('transformers-dynamic', compare.BASELINE)
      return compare.Peer(dict.fromkeys(names, answer), counters)

    monkeypatch.setattr(compare, 'transformers_peer', peer)

  return install


def test_from_end_to_end_without_torch(config, stub, target, capsys):
  stub()
  compare.main(config)
  *printed, path = capsys.readouterr().out.splitlines()
  assert path == f'{config.results}/compare_transformers/mine.json'
  result = results.load(path)
  assert result['label'] == 'measured'
  assert result['versions']['torch'] == '9.9'
  assert result['versions']['transformers'] == '9.9'
  table = result['metrics']
  assert [row['drafter'] for row in table] == [
    'transformers-dynamic', compare.BASELINE, 'plain', 'ngram',
  ]  # fmt: skip
  done = generate(target, plain_model(), PROMPTS, max_new_tokens=6)
  emitted = [len(x.tokens) for x in done.completions]
  for row in table:
    assert row['target'] == 'qwen3' and row['dataset'] == 'mine'
    assert row['batch'] == 1 and row['max_new_tokens'] == 6
    assert row['emitted_by_prompt'] == emitted
    assert row.get('agree', 3) == row['total'] == 3
    assert row['compiled_while_timed'] == row['cudagraph_skips'] == 0
  text = '\n'.join(printed)
  assert text.startswith('measured on ')
  assert 'qwen3, float32, greedy, batch 1, at most 6 tokens each' in text
  assert any(
    line.startswith('ngram') and ' 3/3 ' in line and 'x [' in line
    for line in printed
  )
  assert 'compiled while' not in text and 'CUDA graphs' not in text


def test_what_slows_the_baseline_is_told(config, stub, capsys):
  stub(more=1, skips=2)
  compare.main(config)
  *printed, path = capsys.readouterr().out.splitlines()
  assert f'{compare.BASELINE} compiled while the clock ran' in printed[-2]
  assert f'{compare.BASELINE} ran without CUDA graphs' in printed[-1]
  for row in results.load(path)['metrics']:
    assert row['compiled_while_timed'] == 2 * len(PROMPTS)
    assert row['cudagraph_skips'] == 2


def test_a_static_cache_that_is_not_compiled_is_refused(config, stub, refused):
  stub(compiled=0)
  with refused('transformers 9.9 did not compile'):
    compare.main(config)


@pytest.mark.parametrize('name', ('torch', 'transformers'))
def test_what_to_install(name, config, monkeypatch, refused):
  modules = {x: types.ModuleType(x) for x in ('torch', 'transformers')}
  for module in modules:
    monkeypatch.setitem(sys.modules, module, modules[module])
  monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
  config.target = 'no/such/target.gguf'  # which is looked for later
  with refused(f'{name} is not installed; run: pip install torch transformers'):
    compare.main(config)


@pytest.mark.parametrize(
  'field, value, message',
  (
    ('prompts', 'humanevil', "prompts: 'humanevil' is not humaneval, "),
    ('limit', -1, 'limit: expected at least 1, got -1'),
    ('block', 1, 'block = 1, expected at least 2'),
    ('max_new_tokens', 0, 'max_new_tokens = 0, expected at least 1'),
    ('dtype', 'half', "dtype = 'half', expected float32 or bfloat16"),
    ('drafters', '()', 'drafters is empty, expected at least one'),
    ('drafters', "('plain',)", 'drafters: plain is always run, leave it out'),
    ('name', 'a/b', "name = 'a/b' is not a plain file name"),
    ('results', '{tmp}/file', '{tmp}/file/compare_transformers: Not a dir'),
    ('temperature', 1, "the config has no field 'temperature'"),
  ),
)
def test_bad_input(field, value, message, tmp_path):
  (tmp_path / 'file').touch()
  fields = {'prompts': 'arithmetic', 'results': tmp_path, field: value}
  done = binaries.fork(
    'compare_transformers', FLAG,
    *(
      f'--config.{name}={str(x).replace("{tmp}", str(tmp_path))}'
      for name, x in fields.items()
    ),
  )  # fmt: skip
  assert done.status == 2
  line = message.replace('{tmp}', str(tmp_path))
  assert done.err.startswith(f'error: {line}')
  assert done.err.count('\n') == 1
