"""The decoding table: what it shows, and what a file gets of it."""

import io
import re

import pytest

from spinejax.report import table

SHARED = {'target': 'smollm2', 'temperature': 0.0, 'dtype': 'float32'}
PLAIN = SHARED | {
  'drafter': 'plain',
  'dataset': 'humaneval',
  'tokens_per_round': 1.0,
  'tokens_per_s': 38.2,
  'speedup_vs_plain': 1.0,
  'exact': 164,
  'total': 164,
}
DSPINE = PLAIN | {
  'drafter': 'dspine',
  'tokens_per_round': 2.4,
  'tokens_per_round_low': 2.312,
  'tokens_per_round_high': 2.5,
  'tokens_per_round_nonrepetitive': 2.2,
  'repetitive': 31,
  'tokens_per_s': 54.25,
  'speedup_vs_plain': 1.42,
  'exact': 160,
  'ties': 4,
  'acceptance_by_position': [0.721, 0.5, 0.0],
}


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_what_a_file_gets():
  assert table.render([PLAIN, DSPINE], label='measured', device='a card') == (
    'measured on a card\n'
    'target smollm2, dataset humaneval, temperature 0.0, dtype float32\n'
    '\n'
    'drafter       tokens/round   no loops  tokens/s  speed-up    exact  ties\n'
    '-------------------------------------------------------------------------\n'
    'plain                 1.00          -      38.2     1.00x  164/164     -\n'
    'dspine   2.40 [2.31, 2.50]  2.20 (31)      54.2     1.42x  160/164     4\n'
    '[...]: 95 % interval, bootstrap over prompts\n'
    'no loops: tokens/round without the (n) prompts that end in a loop\n'
    'tokens/s: of one batch after the other, prefill included\n'
    '\n'
    'accepted at each position, % of rounds\n'
    '\n'
    'drafter   1   2  3\n'
    '-------------------\n'
    'dspine   72  50  0\n'
  )


def test_file_and_render_agree_and_are_plain():
  file = io.StringIO()
  rows = [PLAIN, DSPINE | {'drafter': 'dspine[r=384]'}]
  table.print_table(rows, label='synthetic', file=file)
  text = file.getvalue()
  assert text == table.render(rows, label='synthetic')
  assert text.isascii()
  assert '\x1b' not in text
  assert 'dspine[r=384]' in text  # no markup


@pytest.mark.parametrize('columns', ['40', '300'])
def test_a_file_is_100_columns_whatever_the_terminal(monkeypatch, columns):
  rows = [PLAIN, DSPINE | {'acceptance_by_position': [0.5] * 16}]
  before = table.render(rows, label='measured')
  monkeypatch.setenv('COLUMNS', columns)
  monkeypatch.setenv('FORCE_COLOR', '1')
  assert table.render(rows, label='measured') == before
  assert max(map(len, before.splitlines())) <= 100


def test_a_terminal_gets_colour_and_bars(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm-256color')
  monkeypatch.setenv('COLUMNS', '120')
  monkeypatch.delenv('NO_COLOR', raising=False)
  file = Terminal()
  table.print_table([PLAIN, DSPINE], label='measured', file=file)
  assert '\x1b[33mdspine' in file.getvalue()  # not all exact: stands out
  assert '\x1b[33mplain' not in file.getvalue()
  assert '▆▅▁' in file.getvalue()


def test_a_narrow_terminal_gets_no_bars(monkeypatch):
  monkeypatch.setenv('COLUMNS', '80')
  file = Terminal()
  table.print_table([DSPINE], label='measured', file=file)
  assert '▆' not in file.getvalue()


def test_settings_that_differ_become_columns():
  rows = [PLAIN, PLAIN | {'temperature': 1.0}]
  lines = table.render(rows, label='measured').splitlines()
  assert lines[1] == 'target smollm2, dataset humaneval, dtype float32'
  assert lines[3].split() == [
    'drafter',
    'temp',
    'tokens/round',
    'tokens/s',
    'speed-up',
    'exact',
  ]
  assert [line.split()[1] for line in lines[5:7]] == ['0.0', '1.0']


def test_a_long_draft_says_what_is_left_out():
  row = DSPINE | {'acceptance_by_position': [0.5] * 31}
  text = table.render([row], label='measured')
  assert 'accepted at each position, % of rounds, first 16 of 31\n' in text
  assert text.splitlines()[-1].split() == ['dspine'] + ['50'] * 16


def test_joules_are_shown_where_they_were_metered():
  text = table.render([PLAIN | {'joules_per_token': 0.12345}], label='modelled')
  assert re.search(r'J/token', text)
  assert '0.123' in text
  assert 'J/token' not in table.render([PLAIN], label='measured')


def test_sparkline_spans_zero_to_one():
  assert table.sparkline([0, 0.5, 1]) == '▁▅█'


@pytest.mark.parametrize(
  ('rows', 'label', 'message'),
  [
    (
      [PLAIN],
      'fast',
      "label: 'fast' is not one of measured, compiled, modelled, synthetic",
    ),
    ([], 'measured', 'rows: expected at least one, got none'),
    ([PLAIN, SHARED], 'measured', "row 1: 'drafter' is missing"),
  ],
)
def test_refuses(rows, label, message):
  with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
    table.render(rows, label=label)
