"""Every method: it learns, whole or in parts, and decodes what it learned."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from spinejax.decode.generate import Completion
from spinejax.drafters.base import DraftModel
from spinejax.drafters.bundle import write_bundle
from spinejax.drafters.checkpoint import read_checkpoint, write_checkpoint
from spinejax.drafters.codes import codes_hash
from spinejax.drafters.loading import load_drafter
from spinejax.sharding import shard
from spinejax.train import evaluate, loop
from spinejax.train.objectives import OBJECTIVES, Now
from spinejax.train.setup import Start
from spinejax.train.step import train_step
from tests.train import tiny

VARIANTS = {
  # Anchor first, as DSpark is; the others are not.
  'dflash': ('dflash', {'anchor_first': True, 'block': 4}),
  'dflash2': ('dflash2', {}),
  'domino': ('domino', {'anchor_first': True, 'block': 4}),
  'dspark': ('dspark', {}),
  'dspine': ('dspine', {}),
  'dspine, no refinement': ('dspine', {'refine': False}),
}


@dataclasses.dataclass(frozen=True)
class Trained:
  """A drafter that was trained on one batch, and what it decodes.

  Attributes:
    fields: of its config, beside the method's own in these tests.
    fresh, answers: decoded before and after.
  """

  method: str
  fields: Mapping[str, Any]
  begun: Start
  draft: DraftModel
  loss: list[float]
  fresh: list[Completion]
  answers: list[Completion]


@pytest.fixture(scope='module', params=VARIANTS)
def trained(request) -> Trained:
  """All tests of one method together: they share its programs."""
  method, fields = VARIANTS[request.param]
  begun = tiny.begin(method, drafter=fields)
  task, frozen, loss = begun.task, begun.frozen, []
  fresh = tiny.decode(evaluate.drafter_of(task, frozen, begun.state))
  state = loop.run(
    task, tiny.TRAIN, frozen, begun.state, itertools.repeat(tiny.answered()),
    every=loop.Every(log=1),
    log=lambda step, told: loss.append(float(told['loss'])),
  )  # fmt: skip
  draft = evaluate.drafter_of(task, frozen, state)
  return Trained(method, fields, begun, draft, loss, fresh, tiny.decode(draft))


def test_every_method_is_among_these():
  assert {method for method, _ in VARIANTS.values()} == set(OBJECTIVES)


def test_overfits_one_batch(trained):
  assert len(trained.loss) == tiny.TRAIN.steps
  assert np.isfinite(trained.loss).all()
  assert np.mean(trained.loss[-5:]) < 0.75 * trained.loss[0]
  # And what counts: fewer rounds of real decoding, for the same tokens.
  for answers in (trained.fresh, trained.answers):
    for a, b in zip(answers, tiny.plain(), strict=True):
      np.testing.assert_array_equal(a.tokens, b.tokens)
  before = evaluate.tokens_per_round(trained.fresh).value
  assert before < 1.3
  assert evaluate.tokens_per_round(trained.answers).value > before + 0.7


def test_tokens_per_round_are_those_of_the_completions(trained):
  emitted = sum(len(x.tokens) for x in trained.answers)
  rounds = sum(x.rounds for x in trained.answers)
  accepted = sum(
    i * n for x in trained.answers for i, n in enumerate(x.accepted_hist)
  )
  assert emitted == sum(tiny.LENGTH - len(p) for p in tiny.PROMPTS)
  # The last round of an answer may be cut.
  assert rounds < emitted <= rounds + accepted
  found = evaluate.tokens_per_round(trained.answers)
  assert found.value == pytest.approx(emitted / rounds)
  assert found.low <= found.value <= found.high


@pytest.mark.parametrize('trained', tiny.METHODS, indirect=True)
def test_a_batch_taken_in_parts(trained):
  """Same loss and gradients; but for the cosine term, which has weight 0."""
  now = Now(ce_share=0.7, base_share=0.4)
  tokens = tiny.random_batch() | {'length_B': np.arange(12, 36, 3)}
  found = []
  for parts in (1, 4):
    begun = tiny.begin(trained.method, drafter=trained.fields)
    task = dataclasses.replace(begun.task, accumulate=parts)
    state, scalars = train_step(
      task, begun.frozen, begun.state, shard(tokens, None), now, 0.01
    )
    _, (adam, *_) = state.optimizer
    # The first moment: a tenth of the gradient, which has been clipped.
    found.append(jax.device_get((scalars, adam.mu)))
  (whole, grads), (parted, parted_grads) = found
  assert whole['grad_norm'] > 0.1
  for name in whole:
    if not name.endswith('_S'):
      np.testing.assert_allclose(
        whole[name], parted[name], 1e-4, 1e-6, err_msg=name
      )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, 1e-3, 1e-4 * np.abs(a).max()),
    grads,
    parted_grads,
  )


def test_is_read_as_it_was_written(trained, tmp_path):
  """By this library and in the published layout."""
  begun, target = trained.begun, tiny.target()
  codes = None if begun.codes_VR is None else codes_hash(begun.codes_VR)
  write_bundle(
    tmp_path / 'bundle', trained.draft, begun.basis, target.head_hash, codes, {}
  )
  write_checkpoint(tmp_path / 'published', trained.draft)
  for found in (
    load_drafter(tmp_path / 'bundle', target),
    read_checkpoint(tmp_path / 'published', target),
  ):
    assert found.drafter == trained.draft.drafter
    jax.tree.map(
      np.testing.assert_array_equal, found.params, trained.draft.params
    )
