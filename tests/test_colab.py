"""Every notebook of colab/ runs, and is committed without what it printed."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / 'colab').glob('*.ipynb'))

# For each notebook, values of its cell `parameters` that make it quick.
QUICK = {
  '01_decode': dict(
    prompts=['Count the vowels of a string in Python.'], block=4,
    max_new_tokens=8, rounds=2,
  ),
  '02_inside_dspine': dict(before=1, slot=2, rounds=2, max_new_tokens=24),
  '03_train_a_drafter': dict(
    target_name=str(ROOT / 'tests' / 'golden' / 'transformers' / 'qwen3'),
    steps=2, live=False,
    drafter=dict(layers=1, block=4, mask_id=3, taps=1, rank=16, message=8),
  ),
  '04_energy_and_transfer': dict(
    lengths=(64, 4096), chips=('v4',), resamples=5, map_points=3
  ),
}  # fmt: skip
# For each notebook, what it says after it has asserted that it is so, and how
# many pictures it has.
SAYS = {
  '01_decode': ('1 answers, identical to plain decoding', 3),
  '02_inside_dspine': ('slots that refinement changed:', 6),
  '03_train_a_drafter': ('tokens a round', 2),
  '04_energy_and_transfer': (': cheapest at ', 4),
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
  # On Colab it installs itself; elsewhere its first cell does nothing.
  assert code[0]['source'][2] == "if 'google.colab' in sys.modules:\n"
  rest = code[0]['source'][3:]
  assert rest and all(line.startswith('  %') for line in rest)


@each_notebook
def test_runs(path, tmp_path, monkeypatch):
  # Here, so that the other tests of this file do without; nbmake brings both.
  import nbclient
  import nbformat

  monkeypatch.setenv('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
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
  quick = QUICK[path.stem]
  if 'folder' in known:
    quick = quick | dict(folder=str(tmp_path / 'run'))
  source = '\n'.join(f'{k} = {v!r}' for k, v in quick.items())
  notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(source))
  nbclient.NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    # Where Jupyter starts one that is opened there.
    resources={'metadata': {'path': str(path.parent)}},
  ).execute()
  outputs = [
    output
    for cell in notebook.cells
    if cell.cell_type == 'code'
    for output in cell.outputs
  ]
  said, pictures = SAYS[path.stem]
  assert said in ''.join(o.text for o in outputs if o.output_type == 'stream')
  drawn = ['image/png' in o.get('data', ()) for o in outputs]
  assert sum(drawn) == pictures
