"""Rules of the house that ruff does not know."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY = ('spinejax', 'pallas_kernels', 'experiments')
LONGEST = 400
# Golden data of the published implementations, and the comparison with them.
TORCH_MAY_BE_IN = ('tests/golden/make_', 'experiments/compare_transformers.py')


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


@pytest.mark.parametrize('path', files('spinejax'), ids=name_of)
def test_public_names_have_docstrings(path):
  module = ast.parse(path.read_text(encoding='utf-8'))
  kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
  bare = [
    node.name
    for node in module.body
    if isinstance(node, kinds)
    and not node.name.startswith('_')
    and not ast.get_docstring(node)
  ]
  assert not bare
  # An empty package file needs none.
  assert ast.get_docstring(module) or not module.body


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
