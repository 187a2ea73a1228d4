"""The binaries from end to end."""

import json
import pathlib
import re

import matplotlib.image
import ml_collections
import pytest
from tensorboard.backend.event_processing import event_accumulator

from experiments import decode
from spinejax.decode.compare import SAME_ROWS
from spinejax.decode.generate import generate
from spinejax.drafters.loading import load_drafter
from spinejax.report import results
from spinejax.target.loading import load_target
from spinejax.train.input import make_holdout, make_input
from spinejax.train.shards import open_data
from tests.experiments import binaries

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'transformers' / 'qwen3'
DECODE = '--config=configs/decode_smollm2.py:demo'
TURNS = ('Hi.', 'Name a sea.', 'One, two?', 'Why?', 'Add 2 and 3.', 'No.')
SHAPE = ('layers=1', 'block=4', 'mask_id=3', 'taps=1', 'rank=16', 'message=8')


def config(**fields) -> list[str]:
  return [f'--config.{field}={value}' for field, value in fields.items()]


def succeeded(done: binaries.Done) -> list[str]:
  """Printed lines of a run that went well."""
  assert done.status == 0, done.err
  return done.out.splitlines()


def tags(folder: pathlib.Path) -> dict[str, list[str]]:
  """What TensorBoard finds in a folder."""
  assert list(folder.glob('events.out.tfevents.*'))
  return event_accumulator.EventAccumulator(str(folder)).Reload().Tags()


@pytest.fixture(scope='module')
def tmp(tmp_path_factory) -> pathlib.Path:
  """A folder with prompts, in both kinds of file."""
  folder = tmp_path_factory.mktemp('binaries')
  (folder / 'lines.jsonl').write_text(
    ''.join(json.dumps({'turns': [turn]}) + '\n' for turn in TURNS)
  )
  (folder / 'blocks.txt').write_text('First.\n\nSecond,\nin two lines.\n')
  return folder


@pytest.fixture(scope='module')
def data(tmp):
  """What `write_data` writes with a target of random weights."""
  return write_data(tmp), tmp / 'data'


def write_data(tmp, **fields):
  kinds = dict(chat=0, code=0, problem=0, like_given=4)
  fields |= {f'openings.{kind}': count for kind, count in kinds.items()}
  return binaries.fork(
    'write_data',
    '--config=configs/write_smollm2.py:toy',
    *config(
      target=TINY, out=tmp / 'data', length=64, max_prompt=40, max_turn=12,
      batch=4, shard=5, prompts=tmp / 'lines.jsonl', **fields,
    ),
  )  # fmt: skip


def test_write_data(data):
  done, folder = data
  assert succeeded(done)[-1] == str(folder / 'manifest.json')
  assert {x.name for x in folder.iterdir()} == {
    'manifest.json', 'shard-00000.arrayrecord', 'shard-00001.arrayrecord',
  }  # fmt: skip
  target = load_target(str(TINY))
  found = open_data(folder, target=target, longest=64)
  manifest = found.manifest
  assert manifest['finished'] and manifest['target'] == 'qwen3'
  assert manifest['sequences'] == len(found) >= 4
  assert manifest['tokens'] == found.length_N.sum()
  # One of the six answers is too short to be kept.
  assert manifest['kinds']['given']['sequences'] == 5
  assert len(manifest['config']['prompts_sha256']) == 64
  # The prompts are there, each with an answer.
  batch = next(make_input(found, batch=len(found), length=64, seed=0))
  prompts = {
    tuple(row[:answer])
    for row, answer in zip(
      batch['tokens_BT'].tolist(), batch['answer_B'], strict=True
    )
  }
  asked = [target.tokenizer.encode_chat([turn]) for turn in TURNS]
  assert len(prompts & {tuple(ids) for ids in asked}) == 5


def test_write_data_again_changes_nothing(data):
  done, folder = data
  before = {x.name: x.read_bytes() for x in folder.iterdir()}
  again = write_data(folder.parent)
  assert succeeded(again) == succeeded(done)
  assert {x.name: x.read_bytes() for x in folder.iterdir()} == before
  other = write_data(folder.parent, seed=1)
  assert other.status == 2
  assert other.err == (
    f'error: {folder}/manifest.json: data with config.seed = 0 lies there, not '
    '1; choose another folder\n'
  )


@pytest.fixture(scope='module')
def trained(tmp, data):
  """A drafter trained on that for a few steps."""
  done = binaries.fork(
    'train_drafter',
    '--config=configs/train_smollm2.py:toy',
    *config(
      target=TINY, data=data[1], out=tmp / 'mine', length=64, holdout=2,
      results=tmp / 'results',
    ),
    *(f'--config.drafter.{field}' for field in SHAPE),
    *config(**{
      'training.steps': 4, 'training.anchors': 3, 'every.log': 2,
      'every.evaluate': 2, 'every.save': 3, 'evaluate.max_new_tokens': 5,
    }),
  )  # fmt: skip
  return done, tmp / 'mine'


def test_train_drafter(trained, data):
  done, folder = trained
  curves, last = succeeded(done)
  assert last == str(folder)
  rows = results.load(curves)['metrics']
  scores = [row for row in rows if 'tokens_per_round' in row]
  assert [row['step'] for row in scores] == [2, 4]
  assert [row['step'] for row in rows if 'loss' in row] == [2, 4]
  assert scores[1]['training_tokens'] == pytest.approx(
    2 * scores[0]['training_tokens'], abs=1
  )
  target = load_target(str(TINY))
  model = load_drafter(folder, target)
  assert (model.drafter.name, model.drafter.slots) == ('dspine', 3)
  assert model.card['steps'] == 4 and model.card['target'] == 'qwen3'
  manifest = json.loads((data[1] / 'manifest.json').read_text())
  del manifest['shards']
  assert model.card['data'] == manifest
  assert {x.name for x in (folder / 'checkpoints').iterdir()} == {'3', '4'}
  logs = folder.parent / 'results' / 'train' / 'mine'
  found = set(tags(logs)['scalars'])
  terms = ('total', 'ce', 'l1', 'refinement', 'alignment')
  assert found >= {f'loss/{term}' for term in terms}
  assert found >= {'accuracy/1', 'accuracy/3', 'refined_accuracy/2'}
  speed = {f'speed/{name}' for name in ('tokens_per_s', 'flops_per_s')}
  assert found >= speed | {'optimizer/grad_norm', 'decode/tokens_per_round'}
  # The last score is that of the drafter that was written.
  events = event_accumulator.EventAccumulator(str(logs))
  *_, last = events.Reload().Scalars('decode/tokens_per_round')
  found = open_data(data[1], target=target)
  held = next(make_holdout(found, batch=2, length=64, holdout=2))
  prompts = [
    tokens[:answer]
    for tokens, answer in zip(held['tokens_BT'], held['answer_B'], strict=True)
  ]
  done_by = generate(target, model, prompts, max_new_tokens=5).completions
  emitted = sum(len(x.tokens) for x in done_by)
  rounds = sum(x.rounds for x in done_by)
  assert last.value == pytest.approx(emitted / rounds) and last.step == 4
  # What it says of itself while it runs.
  assert re.search(r'step 2: .*total \d', done.err)
  assert 'step 4: tokens_per_round' in done.err


def test_decode_own_prompts_with_own_drafter(tmp, trained):
  _, mine = trained
  done = binaries.fork(
    'decode', DECODE,
    *config(
      target=TINY, drafters=f"('{mine}', 'ngram')", block=4, same_rows=True,
      prompts=f'{tmp}/lines.jsonl,{tmp}/blocks.txt', limit=3, batch=2,
      max_new_tokens=6, show=0, name='own', results=tmp / 'results',
      inspect=3, profile=True,
    ),
  )  # fmt: skip
  path = pathlib.Path(succeeded(done)[-1])
  assert path == tmp / 'results' / 'decode' / 'own.json'
  table = results.load(path)['metrics']
  names = ['plain', SAME_ROWS, 'dspine', 'ngram']
  assert [(row['dataset'], row['drafter']) for row in table] == [
    (dataset, name) for dataset in ('lines', 'blocks') for name in names
  ]
  assert [row['total'] for row in table] == [3] * 4 + [2] * 4
  for row in table:
    assert row.get('wrong', 0) == 0
    if row['drafter'] in ('dspine', 'ngram'):
      assert row['exact'] == row['total']
  logs = tmp / 'results' / 'decode' / 'own'
  assert tags(logs)['images'] == ['acceptance_by_position']
  found = {name: tags(logs / name) for name in ('plain', 'dspine', 'ngram')}
  for one in found.values():
    assert 'blocks/tokens_per_round' in one['scalars']
  positions = 'lines/acceptance_by_position'
  assert positions in found['dspine']['scalars']
  assert positions not in found['plain']['scalars']
  assert found['ngram']['images'] == ['rounds/timeline']
  assert set(found['dspine']['images']) == {
    'rounds/timeline', 'dspine/features', 'dspine/layers', 'dspine/gates',
    'dspine/transition_2',
  }  # fmt: skip
  assert 'rounds/text_summary' in found['dspine']['tensors']
  assert list(logs.glob('dspine/plugins/profile/*/*.xplane.pb'))


def test_decode_chooses_the_block(tmp, trained):
  _, mine = trained
  done = binaries.fork(
    'decode', DECODE,
    *config(
      target=TINY, drafters=f"('{mine}',)", block=0, name='chosen', limit=2,
      prompts=f'{tmp}/lines.jsonl', max_new_tokens=6, show=0,
      results=tmp / 'results', inspect=0,
    ),
  )  # fmt: skip
  lines = succeeded(done)
  # The costs of all widths, then the one that is taken.
  tried = [x.split()[:2] for x in lines if x.startswith(('plain ', 'dspine '))]
  assert tried[:3] == [['plain', '1'], ['dspine', '2'], ['dspine', '4']]
  (choice,) = (line for line in lines if line.startswith('dspine: block '))
  plain, dspine = results.load(lines[-1])['metrics']
  assert plain['rows'] == 1 and dspine['rows'] in (2, 4)
  assert choice.startswith(f'dspine: block {dspine["rows"]}')
  assert dspine['exact'] == dspine['total'] == 2


def test_acceptance_offline_is_that_of_decoding(tmp, trained):
  """Of a drafter that answers, and of one that is replayed along them."""
  _, mine = trained
  prompts = tmp / 'short.txt'
  prompts.write_text('What is 2?\n\nSay a.\n')
  rows = []
  for offline in (True, False):
    done = binaries.fork(
      'acceptance', '--config=configs/acceptance.py:cpu',
      *config(
        target=TINY, drafters=f"('ngram', '{mine}')", prompts=prompts,
        limit=2, max_new_tokens=12, temperatures='(0.0,)', block=4,
        offline=offline, results=tmp / f'offline-{offline}',
      ),
    )  # fmt: skip
    rows.append(results.load(succeeded(done)[-1])['metrics'])
  for replayed, made in zip((True, False), rows, strict=True):
    assert [row.pop('replayed') for row in made] == [replayed] * 2
  assert rows[0] == rows[1] and len(rows[0]) == 2


def test_calibrate(tmp, trained):
  _, mine = trained
  fields = dict(
    target=TINY, drafters=f"('{mine}',)", prompts=f'{tmp}/lines.jsonl',
    limit=4, max_new_tokens=6, temperatures='(0.0,)', results=tmp / 'results',
  )  # fmt: skip
  start = ('calibrate', '--config=configs/calibrate.py:cpu')
  done = binaries.fork(*start, *config(**fields))
  (row,) = results.load(succeeded(done)[-1])['metrics']
  assert row['rounds_fitted'] >= 4 and row['rounds_held_out'] >= 4
  for field in (
    'slot_temperatures', 'ece_by_slot', 'ece_by_slot_calibrated',
  ):  # fmt: skip
    assert len(row[field]) == 3
  for wrong, message in (
    (dict(limit=1), 'prompts has one prompt, expected some to hold out'),
    (dict(drafters="('ngram',)"), "drafter 'ngram' has no confidences"),
  ):
    done = binaries.fork(*start, *config(**fields | wrong))
    assert (done.status, done.err) == (2, f'error: {message}\n')


def test_two_drafters_of_one_method_keep_apart(tmp, trained):
  """Without decoding: what their rows would be called."""
  _, mine = trained
  copies = []
  for name in ('a', 'b'):
    copies.append(str(tmp / name))
    (tmp / name).symlink_to(mine)
  fields = dict(target=str(TINY), block=4, same_rows=False)
  target, found = decode.load(
    ml_collections.ConfigDict(fields | {'drafters': tuple(copies)}), 'float32'
  )
  assert target.name == 'qwen3'
  assert list(found) == ['plain', 'dspine', 'dspine, b']


def test_demo(tmp):
  """SmolLM2-135M and its trained drafter, as a user starts it."""
  done = binaries.start(
    'decode', DECODE,
    *config(
      drafters='smollm2-135m-dspine', prompts='arithmetic', limit=1,
      max_new_tokens=8, results=tmp / 'results', inspect=0,
    ),
  )  # fmt: skip
  lines = succeeded(done)
  path = tmp / 'results' / 'decode' / 'smollm2_demo.json'
  assert lines[-1] == str(path)
  # The summary, which may be wrapped.
  text = ' '.join(lines)
  assert '(arithmetic) tokens a round' in text
  assert 'exact 1 = total 1' in text
  # The table names its worth, its hardware and the exact ones.
  assert any(line.startswith('measured on ') for line in lines)
  assert any('tokens/round' in x and 'exact' in x for x in lines)
  result = results.load(path)
  assert result['experiment'] == 'decode' and result['label'] == 'measured'
  assert result['command'].startswith('python -m experiments.decode')
  plain, dspine = result['metrics']
  assert dspine['exact'] == dspine['total'] == 1
  assert dspine['tokens_per_round'] > 2 > plain['tokens_per_round']
  image = matplotlib.image.imread(path.with_suffix('.png'))
  assert min(image.shape[:2]) > 200
  found = tags(tmp / 'results' / 'decode' / 'smollm2_demo' / 'dspine')
  assert 'arithmetic/tokens_per_round' in found['scalars']
  assert 'arithmetic/exact' in found['scalars']


def test_memory():
  done = binaries.start('memory', '--config=configs/memory.py')
  lines = succeeded(done)
  shown = {
    line.split('│')[1].strip(): float(line.split('│')[2])
    for line in lines
    if line.count('│') == 3
  }
  assert set(shown) >= {
    'target weights', 'target KV cache', 'logits', 'draft weights',
    'draft KV cache', 'token codes',
  }  # fmt: skip
  total = shown.pop('total')
  assert total == pytest.approx(sum(shown.values()), abs=0.01)
  # 8.19 B parameters in bfloat16.
  assert shown['target weights'] == pytest.approx(8.19e9 * 2 / 2**30, rel=0.01)
  assert 'GiB are free on cpu' in lines[-1]
