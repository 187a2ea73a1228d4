"""Teacher-forced gaps, and what counts as exact, tied or wrong."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spinejax.target.model import forward, init_cache, unembed
from spinejax.verify import audit
from tests.decode import toy

CAPACITY = 140  # three chunks of 64 rows
NEW = 12


@functools.partial(jax.jit, static_argnums=0)
def logits_of(cfg, params, ids_T):
  """Logits [T, V] of one pass without a cache."""
  cache = init_cache(cfg, 1, len(ids_T), params.embed_VD.dtype)
  out = forward(cfg, params, ids_T[None], cache)
  return unembed(out.hidden_BQD, params.head_VD)[0]


def all_logits(target, ids) -> np.ndarray:
  padded = np.zeros(CAPACITY, np.int32)
  padded[: len(ids)] = ids
  found = logits_of(target.cfg, target.params, jnp.asarray(padded))
  return np.asarray(found)[: len(ids)]


def direct_gaps(target, prompt, emitted) -> np.ndarray:
  logits = all_logits(target, [*prompt, *emitted])[len(prompt) - 1 : -1]
  return logits.max(-1) - logits[np.arange(len(emitted)), emitted]


def greedy(target, prompt, start=(), count=NEW) -> np.ndarray:
  """The first `count` tokens of an answer that begins with `start`."""
  answer = list(start)
  while len(answer) < count:
    answer.append(int(all_logits(target, [*prompt, *answer])[-1].argmax()))
  return np.array(answer)


def random_answers(*lengths):
  return [np.array(a) for a in toy.prompts(*lengths, seed=1)]


@pytest.mark.parametrize('batch', (32, 2))
def test_gaps_equal_one_pass_without_a_cache(monkeypatch, batch):
  """On both sides of the ends of chunks, and of batches."""
  monkeypatch.setattr(audit, '_BATCH', batch)
  target = toy.target()
  prompts = toy.prompts(63, 64, 65, 1, 128)
  emitted = random_answers(3, 1, 12, 70, 12)
  found = audit.gaps(target, prompts, emitted, CAPACITY)
  assert len(found) == 5
  for gap, prompt, answer in zip(found, prompts, emitted, strict=True):
    assert gap.shape == answer.shape
    want = direct_gaps(target, prompt, answer)
    assert want.max() > 0.1
    np.testing.assert_allclose(gap, want, atol=2e-5)


def test_the_best_token_has_no_gap():
  target, (prompt,) = toy.target(), toy.prompts(60)
  (gap,) = audit.gaps(target, [prompt], [greedy(target, prompt)], CAPACITY)
  assert gap.min() >= 0 and gap.max() < 1e-5


def with_rival(scale: float):
  """A target, a prompt, its greedy answer, and one that parts from it.

  Another token's head row is `scale` times that of a best one, so wherever
  that one is best it stands close behind.
  """
  target, (prompt,) = toy.target(), toy.prompts(60)
  answer = greedy(target, prompt)
  best = int(answer[4])
  rival = next(t for t in range(toy.V) if t not in answer)
  head_VD = target.params.head_VD
  head_VD = head_VD.at[rival].set(scale * head_VD[best])
  target = dataclasses.replace(
    target, params=dataclasses.replace(target.params, head_VD=head_VD)
  )
  answer = greedy(target, prompt)
  at = answer.tolist().index(best)
  other = greedy(target, prompt, [*answer[:at], rival])
  assert not np.array_equal(answer, other)
  return target, prompt, answer, other


def test_a_near_tie():
  target, prompt, answer, other = with_rival(1 - 1e-5)
  found = audit.audit(target, [prompt], [answer], [other], CAPACITY)
  assert 0 < found.worst_gap < audit.TIE['float32']
  assert found == audit.Audit(
    exact=0, ties=1, wrong=0, tie_tokens=1, worst_gap=found.worst_gap,
    audited=1,
  )  # fmt: skip


def test_wrong_tokens():
  target, prompt, answer, other = with_rival(0.9)
  found = audit.audit(target, [prompt], [answer], [other], CAPACITY)
  assert found.worst_gap > 10 * audit.TIE['float32']
  assert found == audit.Audit(
    exact=0, ties=0, wrong=1, tie_tokens=1, worst_gap=found.worst_gap,
    audited=1,
  )  # fmt: skip


@pytest.mark.parametrize('change', (lambda a: a[:-1], lambda a: a[:1]))
def test_a_truncated_or_overlong_answer_is_wrong(change):
  """Although each of its tokens is the best one."""
  target, (prompt,) = toy.target(), toy.prompts(60)
  answer = greedy(target, prompt)
  for a, b in ((answer, change(answer)), (change(answer), answer)):
    found = audit.audit(target, [prompt], [a], [b], CAPACITY)
    assert (found.exact, found.ties, found.wrong) == (0, 0, 1)
    assert found.worst_gap < 1e-5


def test_only_those_that_differ_are_audited_in_float32():
  target, prompt, answer, other = with_rival(1 - 1e-5)
  swapped = answer.copy()
  swapped[-1] = (swapped[-1] + 1) % toy.V
  # Nonsense that is nonsense on both sides is exact: nobody looks at it.
  nonsense = np.arange(NEW)
  found = audit.audit(
    target,
    [prompt] * 4,
    [answer, nonsense, answer, answer],
    [answer, nonsense, other, swapped],
    CAPACITY,
  )
  assert (found.exact, found.ties, found.wrong) == (2, 1, 1)
  assert found.audited == 2
  wrong_gap = direct_gaps(target, prompt, swapped).max()
  assert found.worst_gap == pytest.approx(wrong_gap, abs=1e-4)
  same = audit.audit(target, [prompt], [answer], [answer], CAPACITY)
  assert same == audit.Audit(1, 0, 0, 0, 0.0, 0)


def test_all_are_audited_in_bfloat16():
  target = toy.target()
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), target.params)
  target = dataclasses.replace(target, params=half)
  prompts, emitted = toy.prompts(63, 5), random_answers(12, 12)
  found = audit.audit(target, prompts, emitted, emitted, CAPACITY)
  assert (found.exact, found.ties, found.wrong) == (2, 0, 0)
  assert found.audited == 2
  want = [
    direct_gaps(target, p, e) for p, e in zip(prompts, emitted, strict=True)
  ]
  assert found.worst_gap == pytest.approx(np.max(want), rel=0.05)
  assert found.tie_tokens == pytest.approx(np.sum(np.array(want) > 0), abs=1)
