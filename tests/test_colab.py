"""Every notebook of colab/ runs, and is committed without what it printed."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / 'colab').glob('*.ipynb'))

# For each notebook, values of its cell `parameters` that make it quick.
QUICK = {
  'one_round': dict(before=1, slot=2, rounds=2, max_new_tokens=16),
}
# For each notebook, what it says after it has asserted that it is so.
SAYS = {
  'one_round': '16 tokens, identical to plain decoding',
}

each_notebook = pytest.mark.parametrize(
  'path', NOTEBOOKS, ids=lambda path: path.stem
)


def test_there_is_something_to_run():
  assert {path.stem for path in NOTEBOOKS} == set(QUICK) == set(SAYS)


@each_notebook
def test_is_committed_without_outputs(path):
  notebook = json.loads(path.read_text(encoding='utf-8'))
  code = [c for c in notebook['cells'] if c['cell_type'] == 'code']
  assert code
  for cell in code:
    assert cell['outputs'] == []
    assert cell['execution_count'] is None
    # Times, which some editors note, and widgets.
    assert set(cell['metadata']) <= {'tags'}
  assert set(notebook['metadata']) <= {'kernelspec', 'language_info'}


@each_notebook
def test_runs(path):
  # Here, so that the other tests of this file do without; nbmake brings both.
  import nbclient
  import nbformat

  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  (at,) = (
    i
    for i, cell in enumerate(notebook.cells)
    if 'parameters' in cell.metadata.get('tags', ())
  )
  known = {}
  exec(notebook.cells[at].source, known)
  assert set(QUICK[path.stem]) <= set(known)
  quick = '\n'.join(f'{k} = {v!r}' for k, v in QUICK[path.stem].items())
  notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(quick))
  nbclient.NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    resources={'metadata': {'path': str(ROOT)}},
  ).execute()
  outputs = [
    output
    for cell in notebook.cells
    if cell.cell_type == 'code'
    for output in cell.outputs
  ]
  said = ''.join(o.text for o in outputs if o.output_type == 'stream')
  assert SAYS[path.stem] in said
  assert any('image/png' in o.get('data', ()) for o in outputs)
