"""Rules of the house that ruff does not know."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY = ('spinejax', 'pallas_kernels', 'experiments')
LONGEST = 400
# Golden data of the published implementations, and the comparison with them.
TORCH_MAY_BE_IN = ('tests/golden/make_', 'experiments/compare_transformers.py')
# Names that say themselves what they are.
BARE = {
  'spinejax/energy/cost.py': {'Cost.flops', 'Cost.bytes'},
  'spinejax/energy/trace.py': {'Energy.watts'},
  'experiments/kernel_cases.py': {
    'array', 'injection', 'transition', 'block_attention',
  },
}  # fmt: skip


def files(*folders):
  """Python files under the folders that exist."""
  return sorted(
    path for folder in folders for path in (ROOT / folder).rglob('*.py')
  )


def name_of(path):
  return str(path.relative_to(ROOT))


def imported(path):
  """Every dotted name that a file imports, wherever it does so."""
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def imports(path, module):
  return any(f'{name}.'.startswith(f'{module}.') for name in imported(path))


EVERYWHERE = files(*LIBRARY, 'configs', 'colab', 'tests')


@pytest.mark.parametrize('path', EVERYWHERE, ids=name_of)
def test_imports_and_length(path):
  source = path.read_text(encoding='utf-8')
  assert len(source.splitlines()) <= LONGEST
  assert not imports(path, 'jax._src')
  assert not imports(path, 'tensorflow')
  if not name_of(path).startswith(TORCH_MAY_BE_IN):
    assert not imports(path, 'torch')
    assert not imports(path, 'transformers')
  # Also not as an attribute: `jax._src.core`.
  private = (
    isinstance(node, ast.Attribute)
    and node.attr == '_src'
    and isinstance(node.value, ast.Name)
    and node.value.id == 'jax'
    for node in ast.walk(ast.parse(source))
  )
  assert not any(private)


def bare(path):
  """Public names of a file without a docstring, methods with their class."""
  module = ast.parse(path.read_text(encoding='utf-8'))
  kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
  found = [] if ast.get_docstring(module) or not module.body else ['the file']
  for node in module.body:
    inner = node.body if isinstance(node, ast.ClassDef) else ()
    for one in (node, *inner):
      named = isinstance(one, kinds) and not one.name.startswith('_')
      if named and not node.name.startswith('_') and not ast.get_docstring(one):
        found.append(one.name if one is node else f'{node.name}.{one.name}')
  return found


@pytest.mark.parametrize('path', files('spinejax'), ids=name_of)
def test_public_names_have_docstrings(path):
  assert set(bare(path)) <= BARE.get(name_of(path), set())


@pytest.mark.parametrize('path', files('experiments'), ids=name_of)
def test_binaries_have_docstrings(path):
  # What a main does, its file says; cases of kernels, their operations.
  assert set(bare(path)) <= {'main'} | BARE.get(name_of(path), set())


def test_bare_names_are_found(tmp_path):
  path = tmp_path / 'a.py'
  path.write_text(
    'def f(): pass\n'
    'class A:\n  def g(self): pass\n  def _h(self): pass\n'
    'class _B:\n  def k(self): pass\n'
  )
  assert bare(path) == ['the file', 'f', 'A', 'A.g']


def test_the_rules_find_what_they_forbid(tmp_path):
  path = tmp_path / 'bad.py'
  path.write_text('def f():\n  from jax._src import core\n  import torch.nn\n')
  assert imports(path, 'jax._src')
  assert imports(path, 'torch')
  assert not imports(path, 'torchvision')
  path.write_text('import torchvision\nfrom .torch import x\n')
  assert not imports(path, 'torch')


def test_there_is_something_to_check():
  assert len(EVERYWHERE) > 30
