"""One round of speculative decoding: draft, verify, commit.

`step` is pure and donates nothing, so it can be run and looked at in a
notebook; `decode.loop` compiles it into an on-device loop.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from spinejax.decode.schedule import Schedule, limits
from spinejax.decode.state import DecodeState
from spinejax.drafters.base import (
  Drafter,
  History,
  Proposal,
  TargetView,
  no_cache,
)
from spinejax.drafters.plain import plain as plain_drafter
from spinejax.sharding import constrain, mesh_in
from spinejax.target.config import TargetConfig
from spinejax.target.model import Forward, TargetParams, forward, unembed
from spinejax.target.packing import check_budget, fit, pack
from spinejax.verify.chain import Verdict, verify
from spinejax.verify.sampling import Sampling, Stream, round_keys

# Named scopes of a round, in order. A drafter marks its choice of tokens, from
# the head on, as 'select'.
STAGES = ('extend', 'draft', 'select', 'verify', 'accept', 'commit')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
  """Weights of the target and of the drafter (None if it has none).

  Attributes:
    extra: what a step other than `step` reads beside them, or None.
  """

  target: TargetParams
  drafter: object
  extra: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Round:
  """What one round did."""

  state: DecodeState
  proposal: Proposal
  verdict: Verdict


def prefill(
  cfg: TargetConfig,
  drafter: Drafter,
  params: Params,
  state: DecodeState,
  chunk: int,
  limit_B: jax.Array | None = None,
) -> DecodeState:
  """Reads the next `chunk` prompt tokens of every request into both caches.

  All of a prompt but its last token is read; that one is the first anchor.
  A request that has less to read takes what it has. No token is emitted.

  Args:
    limit_B: tokens to read of each at most.
  """
  start_B = state.target_cache.length_B
  count_B = jnp.clip(state.prompt_length_B - 1 - start_B, 0, chunk)
  if limit_B is not None:
    count_B = jnp.minimum(count_B, limit_B)
  at_BQ = start_B[:, None] + jnp.arange(chunk)
  tokens_BQ = jnp.take_along_axis(
    state.tokens_BT, jnp.minimum(at_BQ, state.tokens_BT.shape[1] - 1), axis=1
  )
  out = forward(cfg, params.target, tokens_BQ, state.target_cache, drafter.taps)
  return dataclasses.replace(
    state,
    target_cache=out.cache.advance(count_B),
    draft_cache=drafter.extend(
      drafter.cfg, params.drafter, state.draft_cache, out.features_BQP, count_B
    ),
  )


def step(
  cfg: TargetConfig,
  drafter: Drafter,
  params: Params,
  state: DecodeState,
  sampling: Sampling,
  limit_B: jax.Array | None = None,
  budget: int | None = None,
  schedule: Schedule | None = None,
  judge: Callable[..., Verdict] = verify,
) -> Round:
  """One round for every request that is not done.

  Its operations carry the name of their stage (`STAGES`), by which a profile
  is broken down.

  Args:
    limit_B: proposals to verify, 0..S, at most; those beyond are dropped. It
      must not depend on the tokens proposed in this round, or the output law
      changes (arXiv 2607.05147, appendix A).
    budget: static; rows that are verified in all, packed: a request takes
      those of its anchor and of the proposals that `limit_B` and
      `target.packing.fit` leave it. None verifies every row of every request,
      those past its limit, too.
    schedule: chooses limits and budget, in the place of both.
    judge: what decides, like `verify`.

  Raises:
    InputError: the budget cannot be packed.
  """
  if schedule is not None:
    budget = schedule.budget
  if budget is not None:
    B, mesh = len(state.length_B), mesh_in(state.length_B)
    check_budget(B, drafter.slots + 1, budget, mesh)
  with jax.named_scope('extend'):
    draft_cache = drafter.extend(
      drafter.cfg,
      params.drafter,
      state.draft_cache,
      state.pending_BKP,
      state.pending_count_B,
    )
  position_B = state.length_B - 1
  with jax.named_scope('draft'):
    proposal = drafter.propose(
      drafter.cfg,
      params.drafter,
      TargetView(params.target.embed_VD, params.target.head_VD),
      draft_cache,
      History(state.tokens_BT, state.length_B),
      state.anchor_B,
      round_keys(state.seed_B, position_B, Stream.DRAFT),
      sampling,
    )
  packing = None
  if schedule is not None:
    with jax.named_scope('select'):
      limit_B = limits(
        schedule, proposal, state.judged_BS, state.passed_BS, ~state.done_B,
        sampling.greedy,
      )  # fmt: skip
  if budget is not None:
    S = drafter.slots
    limit_B = jnp.full_like(state.length_B, S) if limit_B is None else limit_B
    rows_B = fit(limit_B, ~state.done_B, S, budget)
    limit_B, packing = rows_B - 1, pack(rows_B, S + 1, budget)
  if limit_B is not None:
    beyond_BS = jnp.arange(drafter.slots) >= limit_B[:, None]
    proposal = dataclasses.replace(
      proposal, tokens_BS=jnp.where(beyond_BS, -1, proposal.tokens_BS)
    )
  block_BK = jnp.concatenate(
    [state.anchor_B[:, None], proposal.tokens_BS], axis=1
  )
  with jax.named_scope('verify'):
    out = forward(
      cfg, params.target, block_BK, state.target_cache, drafter.taps, packing
    )
    logits = unembed(out.hidden_BQD, params.target.head_VD)
  with jax.named_scope('accept'):
    verdict = judge(
      logits, proposal, sampling, state.seed_B, position_B, packing
    )
  with jax.named_scope('commit'):
    state = dataclasses.replace(state, draft_cache=draft_cache)
    state = commit(state, proposal, verdict, out)
  return Round(state, proposal, verdict)


def plain(
  cfg: TargetConfig,
  drafter: Drafter,
  params: Params,
  state: DecodeState,
  sampling: Sampling,
  unfinished: Callable[[DecodeState, jax.Array], jax.Array],
) -> tuple[DecodeState, jax.Array]:
  """Rounds of plain decoding that leave the drafter ready to go on.

  A round reads one row and keeps its tapped states behind those that a
  drafting round has left, or other plain ones: there is room for K = S + 1 of a
  request. When it is full, and however few rounds there are in a call not
  before, the draft cache takes them all in at once. So beyond the rows of the
  taps that are kept a plain round costs the K-th part of an extension, and
  drafting can be taken up again at any time: its first round takes in what is
  left, as it always does.

  Args:
    unfinished: (state, rounds run here) -> whether to run another one.

  Returns:
    The state after K rounds at most, and how many there were.
  """
  B, K, _ = state.pending_BKP.shape

  def extend(carry):
    draft_cache, count_B = carry
    with jax.named_scope('extend'):
      draft_cache = drafter.extend(
        drafter.cfg, params.drafter, draft_cache, state.pending_BKP, count_B
      )
    return constrain(draft_cache), jnp.zeros_like(count_B)

  # Once or not at all. A loop updates its caches in place.
  draft_cache, count_B = lax.while_loop(
    lambda carry: jnp.max(carry[1]) == K,
    extend,
    (state.draft_cache, state.pending_count_B),
  )
  room = K - jnp.max(count_B)
  # The same batch, as a drafter without slots has it.
  alone = plain_drafter(taps=drafter.taps)
  narrow = dataclasses.replace(
    state,
    draft_cache=no_cache(alone.cfg, B, 0, None),
    pending_BKP=state.pending_BKP[:, :1],
    pending_count_B=jnp.zeros_like(state.pending_count_B),
    accepted_hist_BK=state.accepted_hist_BK[:, :1],
    judged_BS=state.judged_BS[:, :0],
    passed_BS=state.passed_BS[:, :0],
  )
  weights = Params(params.target, None)

  def body(carry):
    narrow, pending_BKP, count_B, ran = carry
    narrow = step(cfg, alone, weights, narrow, sampling).state
    # A request that is done has no row, and takes no place.
    at_B = jnp.where(narrow.pending_count_B > 0, count_B, K)
    pending_BKP = jax.vmap(
      lambda rows, at, new: rows.at[at].set(
        new, mode='drop', unique_indices=True
      )
    )(pending_BKP, at_B, narrow.pending_BKP[:, 0])
    count_B = count_B + narrow.pending_count_B
    return constrain(narrow), pending_BKP, count_B, ran + 1

  narrow, pending_BKP, count_B, ran = lax.while_loop(
    lambda carry: (carry[3] < room) & unfinished(carry[0], carry[3]),
    body,
    (narrow, state.pending_BKP, count_B, jnp.int32(0)),
  )
  hist_BK = jnp.concatenate(
    [narrow.accepted_hist_BK, state.accepted_hist_BK[:, 1:]], axis=1
  )
  return dataclasses.replace(
    narrow,
    draft_cache=draft_cache,
    pending_BKP=pending_BKP,
    pending_count_B=count_B,
    accepted_hist_BK=hist_BK,
    judged_BS=state.judged_BS,
    passed_BS=state.passed_BS,
  ), ran


def commit(
  state: DecodeState, proposal: Proposal, verdict: Verdict, out: Forward
) -> DecodeState:
  """Appends the accepted run and the token after it, and cuts it.

  The run ends at the first stop token inside it (kept) and at the request's
  cap. Rows that are not kept are rolled back by not counting them.
  """
  B, S = proposal.tokens_BS.shape
  at_BK = jnp.broadcast_to(jnp.arange(S + 1), (B, S + 1))
  run_BK = jnp.concatenate(
    [proposal.tokens_BS, jnp.zeros((B, 1), jnp.int32)], axis=1
  )
  run_BK = jnp.where(
    at_BK == verdict.accepted_B[:, None], verdict.next_B[:, None], run_BK
  )
  room_B = state.cap_B - state.length_B
  count_B = jnp.minimum(verdict.accepted_B + 1, room_B)
  stops_BK = jnp.any(run_BK[..., None] == state.stop_ids_E, axis=-1)
  stops_BK &= (at_BK < count_B[:, None]) & state.stops_B[:, None]
  stopped_B = jnp.any(stops_BK, axis=1)
  count_B = jnp.where(stopped_B, jnp.argmax(stops_BK, axis=1) + 1, count_B)
  count_B = jnp.where(state.done_B, 0, count_B)
  kept_BK = at_BK < count_B[:, None]
  T = state.tokens_BT.shape[1]
  write_at_BK = jnp.where(kept_BK, state.length_B[:, None] + at_BK, T)
  last_B1 = jnp.maximum(count_B - 1, 0)[:, None]
  last_B = jnp.take_along_axis(run_BK, last_B1, axis=1)[:, 0]
  live_B = ~state.done_B
  # Of what the target accepted, whether or not a stop token or cap cuts it.
  at_BS, accepted_B1 = at_BK[:, :S], verdict.accepted_B[:, None]
  judged_BS = (at_BS <= accepted_B1) & (proposal.tokens_BS >= 0)
  judged_BS &= live_B[:, None]
  length_B = state.length_B + count_B
  return dataclasses.replace(
    state,
    # Mapped over the batch, which may be split over devices.
    tokens_BT=jax.vmap(lambda row, at, new: row.at[at].set(new, mode='drop'))(
      state.tokens_BT, write_at_BK, run_BK
    ),
    length_B=length_B,
    done_B=state.done_B | stopped_B | (length_B >= state.cap_B),
    anchor_B=jnp.where(count_B > 0, last_B, state.anchor_B),
    target_cache=out.cache.advance(count_B),
    pending_BKP=out.features_BQP,
    pending_count_B=count_B,
    accepted_hist_BK=state.accepted_hist_BK
    + (at_BK == count_B[:, None] - 1).astype(jnp.int32),
    rounds_B=state.rounds_B + live_B,
    judged_BS=state.judged_BS + judged_BS,
    passed_BS=state.passed_BS + (judged_BS & (at_BS < accepted_B1)),
  )
