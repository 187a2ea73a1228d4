"""What the pages say is so: commands, code, links, labels, binaries."""

import ast
import contextlib
import importlib
import json
import pathlib
import re
import shlex
import sys

import jax
import pytest
from absl import flags
from ml_collections import config_flags

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')])
CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
NOTEBOOKS = sorted((ROOT / 'colab').glob('*.ipynb'))
BINARIES = sorted(
  path.stem
  for path in (ROOT / 'experiments').glob('*.py')
  if 'common.run(main)' in path.read_text()
)
TINY = ROOT / 'tests' / 'golden' / 'transformers' / 'qwen3'
# A model that is there at once, in the place of those of the pages.
INSTEAD = {
  "load_target('smollm2-135m')": f'load_target({str(TINY)!r})',
  "load_drafter('smollm2-135m-dspine', target": "load_drafter('ngram', target",
  "prime number?'])": "prime number?'], max_new_tokens=6)",
  'max_new_tokens=100': 'max_new_tokens=6',
}
_FENCE = re.compile(r'^ *```(\w+)\n(.*?)^ *```', re.M | re.S)
_LINK = re.compile(r'\]\(([^)\s]+)\)')


def name_of(path):
  return str(path.relative_to(ROOT))


def blocks(path, language):
  """The fenced blocks of a page in a language."""
  found = _FENCE.findall(path.read_text(encoding='utf-8'))
  return [text for name, text in found if name == language]


def commands(text):
  """Each command of a shell text, as words; lines may go on."""
  text = re.sub(r'\\\n\s*', ' ', text)
  for line in text.splitlines():
    words = shlex.split(line, comments=True)
    if words:
      yield words


def written():
  """(where, command) of all pages, config docstrings and notebooks."""
  for path in PAGES:
    for block in blocks(path, 'sh'):
      yield from ((name_of(path), words) for words in commands(joined(block)))
  for path in CONFIGS:
    says = ast.get_docstring(ast.parse(path.read_text()), clean=False)
    for found in re.findall(r'python -m experiments(?:.|\\\n)*', says):
      yield from ((name_of(path), words) for words in commands(found))
  for path in NOTEBOOKS:
    for cell in json.loads(path.read_text())['cells']:
      if cell['cell_type'] == 'markdown':
        for found in re.findall(
          r'`(python -m [^`]*)`', ''.join(cell['source'])
        ):
          yield name_of(path), shlex.split(found)


def joined(block):
  """Without the quoted line break of a JSON body."""
  return re.sub(r"'\{[^']*\}'", lambda m: m[0].replace('\n', ' '), block)


WRITTEN = list(written())
RUN = [
  (where, words)
  for where, words in WRITTEN
  if words[:2] == ['python', '-m'] and words[2].startswith('experiments.')
]


def parsed(words, monkeypatch):
  """What a binary would not take as flags; it raises where they are wrong:
  unknown fields and variants, values of another type."""
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values)
  words = ['', *words]
  monkeypatch.setattr(sys, 'argv', words)  # where it looks for fields
  rest = values(words)
  values.config.lock()  # missing files are told at the first use
  return rest


def test_there_are_commands():
  assert len(RUN) > 60
  assert {words[2].split('.')[1] for _, words in RUN} == set(BINARIES)


@pytest.mark.parametrize(
  'where, words', RUN, ids=[f'{a}: {" ".join(b[2:])}' for a, b in RUN]
)
def test_command_has_its_binary_config_and_fields(where, words, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert (ROOT / 'experiments' / f'{words[2].split(".")[1]}.py').exists()
  assert parsed(words[3:], monkeypatch) == ['']


def test_a_wrong_command_is_found(monkeypatch):
  monkeypatch.chdir(ROOT)
  for wrong in (
    '.py:nothing',
    '.py --config.nothing=1',
    '.py --config.batch=x',
  ):
    with pytest.raises((AttributeError, ValueError, TypeError, flags.Error)):
      parsed(f'--config=configs/memory{wrong}'.split(), monkeypatch)


def test_every_binary_has_a_section_with_its_command():
  page = (ROOT / 'docs' / 'binaries.md').read_text()
  sections = dict(re.findall(r'^## (\w+)\n(.*?)(?=^## |\Z)', page, re.M | re.S))
  assert set(sections) == set(BINARIES)
  for name, text in sections.items():
    assert f'python -m experiments.{name} ' in text


def test_other_commands_are_there():
  makes = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.M))
  known = {'make', 'python', 'pip', 'tensorboard', 'curl', '.'}
  for where, words in WRITTEN:
    assert words[0] in known, (where, words)
    if words[0] == 'make':
      assert words[1] in makes, (where, words)
    if words[:2] == ['pip', 'install']:
      setup = (ROOT / 'setup.cfg').read_text()
      for extra in re.findall(r'\[(.*)\]', ' '.join(words)):
        for name in extra.split(','):
          assert f'\n{name} =\n' in setup, (where, name)


@pytest.mark.parametrize('path', PAGES, ids=name_of)
def test_links_lead_somewhere(path):
  for link in _LINK.findall(path.read_text(encoding='utf-8')):
    if link.startswith('http'):
      continue
    file, _, anchor = link.partition('#')
    target = (path.parent / file) if file else path
    assert target.exists(), link
    if anchor:
      heads = re.findall(r'^#+ (.*)$', target.read_text(), re.M)
      slugs = [
        re.sub(r'[^\w -]', '', h).lower().replace(' ', '-') for h in heads
      ]
      assert anchor in slugs, link


@pytest.mark.parametrize('path', PAGES, ids=name_of)
def test_python_imports_what_there_is(path):
  for block in blocks(path, 'python'):
    for node in ast.walk(ast.parse(block)):
      if isinstance(node, ast.ImportFrom):
        module = importlib.import_module(node.module)
        for alias in node.names:
          if not hasattr(module, alias.name):
            importlib.import_module(f'{node.module}.{alias.name}')
      elif isinstance(node, ast.Import):
        for alias in node.names:
          importlib.import_module(alias.name)


@pytest.mark.parametrize('page', ('README.md', 'docs/add_a_drafter.md'))
def test_python_runs(page, capsys):
  # It is compiling that takes the time.
  with quick():
    run_python(page)
  assert capsys.readouterr().out


def run_python(page):
  code = '\n'.join(blocks(ROOT / page, 'python'))
  for old, new in INSTEAD.items():
    code = code.replace(old, new)
  space = {'__name__': 'walkthrough'}
  exec(compile(code, page, 'exec'), space)


@contextlib.contextmanager
def quick():
  jax.config.update('jax_disable_most_optimizations', True)
  try:
    yield
  finally:
    jax.config.update('jax_disable_most_optimizations', False)


def test_every_result_file_is_listed_with_its_label():
  page = (ROOT / 'docs' / 'labels.md').read_text()
  listed = dict(
    re.findall(r'^\| `(results/\S+\.json)` \| (\w+) \|', page, re.M)
  )
  files = (ROOT / 'results').glob('*/*.json')
  assert listed == {
    name_of(path): json.loads(path.read_text())['label'] for path in files
  }
