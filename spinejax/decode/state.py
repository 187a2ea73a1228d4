"""The state of a batch of requests between two rounds."""

import dataclasses

import jax
import jax.numpy as jnp

from spinejax.drafters.base import DraftCache, Drafter
from spinejax.target.config import TargetConfig
from spinejax.target.model import KVCache, init_cache


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
  """Everything a round reads and writes; static shapes.

  The last token of a request is its anchor: known, but not yet in the
  target's cache. So `target_cache.length_B == length_B - 1` between rounds.

  Attributes:
    tokens_BT: prompt, then emitted tokens.
    length_B: valid tokens.
    prompt_length_B: of them, prompt.
    cap_B: length at which a request ends.
    done_B: whether it has ended.
    anchor_B: its last token.
    target_cache, draft_cache: see `KVCache` and `DraftCache`.
    pending_BKP: tapped states of the rows that the last round kept, not yet
      in the draft cache.
    pending_count_B: how many of the K rows are valid.
    seed_B: uint32 seeds.
    stop_ids_E: token ids that end a request.
    stops_B: whether they end it; else only its cap does.
    accepted_hist_BK: rounds by proposals kept, 0..S, after all cuts; so
      sum_k (k + 1) hist[k] is the number of emitted tokens.
    rounds_B: rounds run for each request.
    judged_BS: rounds in which the proposal of a slot was judged: those before
      it had been accepted, and it was within the limit.
    passed_BS: of them, rounds in which it was accepted.
  """

  tokens_BT: jax.Array
  length_B: jax.Array
  prompt_length_B: jax.Array
  cap_B: jax.Array
  done_B: jax.Array
  anchor_B: jax.Array
  target_cache: KVCache
  draft_cache: DraftCache
  pending_BKP: jax.Array
  pending_count_B: jax.Array
  seed_B: jax.Array
  stop_ids_E: jax.Array
  stops_B: jax.Array
  accepted_hist_BK: jax.Array
  rounds_B: jax.Array
  judged_BS: jax.Array
  passed_BS: jax.Array


def init_state(
  cfg: TargetConfig,
  drafter: Drafter,
  tokens_BT: jax.Array,
  prompt_length_B: jax.Array,
  cap_B: jax.Array,
  seed_B: jax.Array,
  stop_ids_E: jax.Array,
  *,
  stops_B: jax.Array | None = None,
  dtype=jnp.float32,
) -> DecodeState:
  """A batch whose prompts are known but not yet read (see `prefill`).

  Args:
    tokens_BT: prompts, padded on the right to the capacity T, which must be
      at least the largest cap plus K.
    prompt_length_B: at least 1 each.
    stops_B: by default stop ids end all requests.
  """
  B, T = tokens_BT.shape
  K = drafter.slots + 1
  last_B1 = (prompt_length_B - 1)[:, None]
  zeros_B = jnp.zeros((B,), jnp.int32)
  return DecodeState(
    tokens_BT=tokens_BT,
    length_B=prompt_length_B + 0,  # every field needs a buffer of its own
    prompt_length_B=prompt_length_B,
    cap_B=cap_B,
    done_B=prompt_length_B >= cap_B,
    anchor_B=jnp.take_along_axis(tokens_BT, last_B1, axis=1)[:, 0],
    target_cache=init_cache(cfg, B, T, dtype),
    draft_cache=drafter.init_cache(drafter.cfg, B, T, dtype),
    pending_BKP=jnp.zeros((B, K, len(drafter.taps) * cfg.width), dtype),
    pending_count_B=zeros_B,
    seed_B=seed_B,
    stop_ids_E=stop_ids_E,
    stops_B=jnp.ones((B,), bool) if stops_B is None else stops_B,
    accepted_hist_BK=jnp.zeros((B, K), jnp.int32),
    rounds_B=zeros_B + 0,
    judged_BS=jnp.zeros((B, K - 1), jnp.int32),
    passed_BS=jnp.zeros((B, K - 1), jnp.int32),
  )
