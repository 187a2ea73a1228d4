"""The specification of choosing a path through candidates, in plain jnp."""

import jax
import jax.numpy as jnp
from jax import lax


def transition(
  message_BSNM: jax.Array,
  write_BSNM: jax.Array,
  straight_BSN: jax.Array,
  scale_BS: jax.Array,
  factor_BSN: jax.Array | None = None,
  noise_BSN: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """As `api.transition`, which documents it."""
  scores_BSNN = jnp.einsum(
    'bsim,bscm->bsic', message_BSNM, write_BSNM,
    precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32,
  )  # fmt: skip
  scores_BSNN = straight_BSN[:, :, None] + scale_BS[..., None, None] * (
    scores_BSNN
  )
  if factor_BSN is not None:
    scores_BSNN = scores_BSNN * factor_BSN[..., None]
  tried_BSNN = scores_BSNN
  if noise_BSN is not None:
    tried_BSNN = tried_BSNN + noise_BSN[:, :, None]
  return follow(jnp.argmax(tried_BSNN, axis=-1)), scores_BSNN


def follow(choice_BSN: jax.Array) -> jax.Array:
  """The path [B, S] that starts with the choice after candidate 0 of slot 1.

  It is the composition of S maps from predecessor to candidate, taken by a
  parallel prefix.
  """
  path_BSN = lax.associative_scan(
    lambda first, then: jnp.take_along_axis(then, first, axis=-1),
    choice_BSN,
    axis=1,
  )
  return path_BSN[..., 0]
