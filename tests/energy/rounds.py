"""Made-up measurements of rounds: what a result file of them holds."""

import numpy as np

from spinejax.energy.speculation import Rounds, Speculation

BATCHES, CONTEXTS = (1, 8, 32, 128, 256), (128, 1024, 4096, 16384)
# Of the size of Qwen3-8B and DSpine on an H200: rows hide behind the weights
# in time, while each of their products takes joules.
TIME_MS = (4.0, 3.7e-5, 0.004, 1.2, 5e-6, 0.004, 2e-5, 0.018), 2**7.5
JOULES = (2.2, 2.2e-5, 0.011, 0.7, 3e-6, 0.0025, 0.0), None
MOST = 32 * 16384  # tokens of all requests that fit


def law(coef, hidden):
  """A law with given coefficients, of the drafter dspine."""
  made = Speculation(['dspine'], hidden)
  made.coef_ = np.array(coef)
  return made


def rows(target='qwen3-8b', noise=0.02, repeats=1, seed=0):
  """Metric rows: rounds of plain and dspine at all places that fit, idle."""
  rng, made = np.random.default_rng(seed), []
  laws = law(*JOULES), law(*TIME_MS)
  for batch in BATCHES:
    for context in CONTEXTS:
      if batch * context > MOST:
        continue
      for drafter, block in (('plain', 1), ('dspine', 16), ('dspine', 8)):
        one = Rounds.of(drafter, batch, context, block)
        for repeat in range(repeats):
          joules, time_ms = (
            float(x.predict(one)[0] * np.exp(noise * rng.normal()))
            for x in laws
          )
          made.append(dict(
            kind='round', target=target, drafter=drafter, rows=block,
            batch=batch, context=context, joules=joules, time_ms=time_ms,
            repeat=repeat,
          ))  # fmt: skip
  return [*made, dict(kind='idle', target=target, watts=120.0)]
