"""Which proposals are worth verifying: the scheduler of DSpark.

Letters as in arXiv 2607.05147, section 3.2: a_{r,j} is the probability that
the first j proposals of request r all stand, tau = sum_r (1 + sum_j a_{r,j})
the tokens that a round is expected to emit, and SPS(B) the rounds a second of
B rows in all, measured once (`decode.cost`). What is sought is the largest
tau * SPS(B); a rate of rounds a joule does as well.

It is decided at two paces. On the device, in every round, which proposals fill
the budget that the program was compiled for (this file). On the host, between
calls, which budget that should be, or whether to draft at all (`control`). A
program takes as long as its budget is large, whatever it holds, so within one
the rate is constant and Algorithm 1 admits until the budget is full; a rate
that falls with the rows makes it stop before.

Exactness. Whether a drawn token is verified must not depend on that token, nor
on what was drawn after it (appendix A). The confidence of slot j depends on
the tokens before it, so a search of all prefixes for the best total leaks what
was drawn into the decision to look at it. Admitting one at a time, the
likeliest next, and stopping at once when throughput falls, does not: what is
known when a proposal is admitted are the proposals admitted before it. Where
nothing is drawn (greedy), and with survival estimated from earlier rounds
alone, any rule will do, and the global optimum is taken.

Requests that share a budget share their limits, too, and with them where their
rounds begin. So what a seed draws at a temperature above 0 depends on the
neighbours; its law does not, and greedy tokens do not.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.drafters.base import Proposal
from spinejax.errors import InputError

# A budget of no rows: plain decoding (`round.plain`).
PLAIN = 0
# Rounds that an estimate of acceptance counts for until it has its own.
_WEIGHT = 8.0
# Confidence is kept this far from 0 and 1, whose logits are infinite.
_EDGE = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
  """How a round chooses what to verify.

  Attributes:
    rate_Q: rounds a second, in any unit, of 0, 1, 2, ... rows in all; the last
      one is the budget. Constant for the budget of a compiled program.
    temperature_S: calibration of the drafter's confidences (`calibration.fit`;
      ones leave them as they are); None: go by the acceptance of each request
      in its earlier rounds.
  """

  rate_Q: jax.Array
  temperature_S: jax.Array | None = None

  @classmethod
  def fill(
    cls, budget: int, temperature_S: Sequence[float] | None = None
  ) -> 'Schedule':
    """Verifies the likeliest proposals until the budget is full.

    Raises:
      InputError: a temperature is not positive, or the budget is not.
    """
    if type(budget) is not int or budget < 1:
      raise InputError(f'budget = {budget!r}, expected a whole number >= 1')
    if temperature_S is not None:
      temperature_S = np.asarray(temperature_S, np.float32)
      if (
        temperature_S.ndim != 1
        or not (np.isfinite(temperature_S) & (temperature_S > 0)).all()
      ):
        raise InputError(
          f'temperature_S = {temperature_S.tolist()}, expected a positive '
          'number for each slot'
        )
      temperature_S = jnp.asarray(temperature_S)
    return cls(jnp.ones((budget + 1,)), temperature_S)

  @property
  def budget(self) -> int:
    """Rows of a round in all, static."""
    return self.rate_Q.shape[0] - 1


def limits(
  schedule: Schedule,
  proposal: Proposal,
  judged_BS: jax.Array,
  passed_BS: jax.Array,
  live_B: jax.Array,
  greedy: bool,
) -> jax.Array:
  """Proposals of each request to verify in this round, [B].

  With the anchors of those that live they fit the schedule's budget.

  Args:
    proposal: what was drafted. An empty slot ends what can be verified.
    judged_BS, passed_BS: see `DecodeState`.
    live_B: requests that are not done.
    greedy: static; nothing was drawn at random.
  """
  if schedule.temperature_S is None:
    each_BS = acceptance(judged_BS, passed_BS)
    stop = False
  else:
    each_BS = calibrated(proposal.confidence_BS, schedule.temperature_S)
    stop = not greedy
  each_BS = jnp.where(proposal.tokens_BS >= 0, each_BS, 0.0)
  survival_BS = jnp.cumprod(each_BS, axis=1)
  return admit(survival_BS, live_B, schedule.rate_Q, stop)


def admit(
  survival_BS: jax.Array, live_B: jax.Array, rate_Q: jax.Array, stop: bool
) -> jax.Array:
  """Algorithm 1: proposals of each request in descending order of survival.

  Of equals the earlier slot comes first, then the earlier request. As survival
  never rises along a request, what is admitted of it is a prefix.

  Args:
    survival_BS: a, non-increasing along S; where it is 0 nothing is admitted.
    live_B: requests that take part; the others get 0.
    rate_Q: see `Schedule`.
    stop: static; end where throughput first fails to rise, which is exact for
      any drafting law; or else at the best total, which is so only where
      survival does not hang on drawn tokens.

  Returns:
    l_r, proposals to verify, [B].
  """
  B, S = survival_BS.shape
  alive_BS = jnp.where(live_B[:, None], survival_BS, 0.0)
  a = alive_BS.T.reshape(-1)
  order = jnp.argsort(-a, stable=True)
  requests = jnp.sum(live_B)
  tokens = requests + jnp.pad(jnp.cumsum(a[order]), (1, 0))
  count = jnp.arange(B * S + 1)
  rows = requests + count
  within = (rows < len(rate_Q)) & (count <= jnp.sum(a > 0))
  rate = jnp.where(within, jnp.take(rate_Q, rows, mode='clip'), 0.0)
  theta = tokens * rate
  if stop:
    rising = (theta[1:] > theta[:-1]).astype(jnp.int32)
    count = jnp.sum(jnp.cumprod(rising))
  else:
    count = jnp.argmax(theta)
  admitted = (
    jnp.zeros((B * S,), jnp.int32)
    .at[order]
    .set((jnp.arange(B * S) < count).astype(jnp.int32))
  )
  return jnp.sum(admitted.reshape(S, B), axis=0)


def calibrated(confidence_BS: jax.Array, temperature_S: jax.Array) -> jax.Array:
  """sigmoid(logit(c) / T) by slot."""
  c = jnp.clip(confidence_BS, _EDGE, 1 - _EDGE)
  return jax.nn.sigmoid((jnp.log(c) - jnp.log1p(-c)) / temperature_S)


def acceptance(judged_BS, passed_BS):
  """P(slot j stands | those before it do) of each request, [B, S].

  A request's own rounds, beside which those of the whole batch count for a
  few, and beside these those of all slots; before any round, 1. Takes arrays
  of JAX or NumPy.
  """
  total = (passed_BS.sum() + 1.0) / (judged_BS.sum() + 1.0)
  judged_S, passed_S = judged_BS.sum(0), passed_BS.sum(0)
  batch_S = (passed_S + _WEIGHT * total) / (judged_S + _WEIGHT)
  return (passed_BS + _WEIGHT * batch_S) / (judged_BS + _WEIGHT)
