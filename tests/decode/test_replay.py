"""Drafting along known answers takes the rounds of decoding."""

import numpy as np
import pytest

from spinejax.decode.replay import replay
from spinejax.drafters.base import DraftModel
from spinejax.drafters.ngram import ngram
from tests.decode import toy

PROMPTS = toy.prompts(1, 3, 9, 17)


@pytest.mark.parametrize(
  'model',
  [
    toy.dspine_model,
    lambda: toy.other_model('domino'),
    lambda: DraftModel(ngram(toy.SLOTS)),
  ],
  ids=['dspine', 'domino', 'ngram'],
)
def test_the_rounds_of_decoding(model):
  of, draft = toy.target(), model()
  # Answers of unlike lengths: by a cap, and by a stop token inside a run.
  wanted = toy.decode(of, draft, PROMPTS, max_new_tokens=[24, 1, 9, 24])
  found = replay(of, draft, PROMPTS, wanted.completions, batch=3)
  for a, b in zip(found, wanted.completions, strict=True):
    assert a.rounds == b.rounds
    np.testing.assert_array_equal(a.accepted_hist, b.accepted_hist)


def test_answers_with_stop_tokens_and_long_runs():
  """Runs that a stop token or the cap cuts, with proposals that are right."""
  of = toy.target()
  plain = toy.answers(of, toy.dflash_model(), PROMPTS)
  stops = (plain[0][7], plain[2][11])
  answers = toy.answers(of, toy.dflash_model(), PROMPTS, stop_ids=stops)
  assert {len(a) for a in answers} != {toy.NEW}
  draft = toy.oracle_model(PROMPTS, plain)
  wanted = toy.decode(of, draft, PROMPTS, stop_ids=stops).completions
  found = replay(of, draft, PROMPTS, wanted, batch=4)
  assert any(c.accepted_hist[toy.SLOTS] for c in wanted)
  for a, b in zip(found, wanted, strict=True):
    np.testing.assert_array_equal(a.accepted_hist, b.accepted_hist)


def test_prompts_without_answers_are_refused(refused):
  of, draft = toy.target(), toy.dflash_model()
  with refused('2 prompts and 0 answers, expected as many, and at least one'):
    replay(of, draft, PROMPTS[:2], [], batch=1)
