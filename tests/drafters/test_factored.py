"""The greedy walk from factors, against that through the whole table."""

import jax
import jax.numpy as jnp
import numpy as np

from spinejax.drafters import dspine, factored
from spinejax.drafters.transition import walk
from spinejax.train.objectives import OBJECTIVES
from spinejax.verify.sampling import Sampling

CFG = dspine.DSpineConfig(
  vocab=101, width=32, layers=2, heads=2, kv_heads=1, head_dim=16, ffn=16,
  block=6, mask_id=0, taps=(1,), rank=16, message=8, candidates=4, softcap=2.0,
)  # fmt: skip


@jax.jit
def both_paths(params, head_VD, *given):
  """Through the factors and through the table; and each slot's best alone."""
  tables = factored.make_tables(CFG, params, head_VD)
  given = CFG, params, tables, head_VD, *given
  scores = factored.transition_factored(*given)
  ids_BSN = given[-2]
  through, _ = walk(scores, ids_BSN, None, Sampling.make(len(ids_BSN)))
  alone = jnp.argmax(factored.factors(*given).straight_BSN, axis=-1)
  best_BS = jnp.take_along_axis(ids_BSN, alone[..., None], axis=-1)[..., 0]
  return factored.greedy_path(*given), through, best_BS


def test_greedy_path_is_the_walk_through_the_table():
  random = np.random.default_rng(0)

  def normal(*shape):
    return jnp.float32(random.normal(size=shape))

  objective, batch = OBJECTIVES['dspine'], 64
  params = jax.eval_shape(
    lambda: objective.params(
      objective.init(CFG, jax.random.key(0), jnp.zeros((32, 16))),
      jnp.zeros((101, 16)),
    )
  )
  params = jax.tree.map(
    lambda x: normal(*x.shape) * x.shape[-1] ** -0.5, params
  )
  ids_BSN = [[random.permutation(101)[:4] for _ in range(5)] for _ in range(64)]
  got, through, alone = both_paths(
    params, normal(101, 32) / 4, normal(batch, 5, 32),
    jnp.int32(ids_BSN), jnp.arange(batch),
  )  # fmt: skip
  np.testing.assert_array_equal(got, through)
  # The one before decides: it is not each slot's best.
  assert (alone != got).any()
