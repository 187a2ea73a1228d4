"""A user's table of measurements, right and wrong."""

import math

import numpy as np
import pytest

from spinejax.energy.cells import cells_of, joules_of, read_csv

HEAD = 'model,input,output,joules,layers,width,heads,kv_heads'
ROW = dict(model='m', input=64, output=128, layers=2, width=32, heads=4,
           kv_heads=2, joules=1.5)  # fmt: skip


def test_csv(tmp_path):
  path = tmp_path / 'own.csv'
  # As a spreadsheet writes it: a mark, blanks, another order, more columns.
  path.write_text(
    'family, ' + HEAD + ',note,cached,head_dim,vocab\n'
    'fa,a,64,128,2.5,2,32,4,2,x,10,16,100\n'
    ',b,32,16,1e-3,3,64,8,8,"y,z",,,\n',
    encoding='utf-8-sig',
  )
  cells, joules_N = read_csv(path)
  assert cells.models == ['a', 'b']
  assert cells.family_N.tolist() == ['fa', 'b']
  np.testing.assert_array_equal(joules_N, [2.5, 1e-3])
  np.testing.assert_array_equal(cells.cached_N, [10, 0])
  np.testing.assert_array_equal(cells.kv_ratio_N, [0.5, 1])
  np.testing.assert_array_equal(cells.kv_width_N, [32, 64])
  assert cells.vocab_N[0] == 100 and math.isnan(cells.vocab_N[1])
  assert cells[cells.model_N == 'b'].models == ['b']


@pytest.mark.parametrize(
  'text, message',
  (
    ('', 'no column model, input, output, layers, width, ...'),
    ('model,input,output\na,1,2\n', 'no column layers, width, heads, kv_heads, '
     'joules; expected model, input, output, layers, width, heads, kv_heads, '
     'joules'),
    (HEAD + '\n', 'no rows below the header'),
  ),
)  # fmt: skip
def test_no_table(text, message, tmp_path, refused):
  path = tmp_path / 'own.csv'
  path.write_text(text)
  with refused(f'{path}: {message}'):
    read_csv(path)


@pytest.mark.parametrize(
  'line, message',
  (
    ('a,64,128,-3,2,32,4,2', "joules = '-3', expected a number of more than 0"),
    ('a,64,128,0,2,32,4,2', "joules = '0', expected a number of more than 0"),
    ('a,64,128,nan,2,32,4,2', "joules = 'nan', expected a number of ..."),
    ('a,64,0,3,2,32,4,2', "output = '0', expected a number of at least 1"),
    ('a,sixty,8,3,2,32,4,2', "input = 'sixty', expected a number of at ..."),
    (',64,128,3,2,32,4,2', 'model is missing'),
    ('a,64,128,3,2,32,4,8', 'kv_heads = 8, expected at most heads = 4'),
    ('a,64,128,3,2,32,4', 'expected 8 values, as the header'),
    ('a,64,128,3,2,32,4,2,7', 'expected 8 values, as the header'),
  ),
)
def test_bad_line(line, message, tmp_path, refused):
  path = tmp_path / 'own.csv'
  path.write_text(f'{HEAD}\na,64,128,3,2,32,4,2\n{line}\n')
  with refused(f'{path}, line 3: {message}'):
    read_csv(path)


def test_no_file(tmp_path, refused):
  with refused(f'{tmp_path}/none.csv: No such file or directory'):
    read_csv(tmp_path / 'none.csv')


def test_bad_rows(refused):
  with refused('no cells, expected at least one row'):
    cells_of([])
  with refused('row 1: cached = 64, expected less than input = 64: ...'):
    cells_of([ROW, ROW | dict(cached=64)])
  with refused('row 0: input = True, expected a number of at least 1'):
    cells_of([ROW | dict(input=True)])
  with refused('row 1: joules = None, expected a number of more than 0'):
    joules_of([ROW, {}])
