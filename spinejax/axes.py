"""The legend of axis letters and the array aliases made from them.

Every array name ends in its axes: `logits_BKV` is [batch, block row, vocab].

  A  anchors of a training sequence      N  candidates of one proposal
  B  batch (requests)                    P  tapped features, taps x D
  C  width of one attention head         Q  query rows of a forward pass
  D  model width                         R  transfer or selector rank
  E  rank of a correction; stop tokens   S  proposals of a round
  F  feed-forward width                  T  context positions (capacity)
  G  key/value heads                     V  vocabulary
  H  query heads                         X  query heads joined, H x C
  J  rows of one group: its query heads, then its key, then its value
  K  rows of a block, or those of a round: the anchor, then S proposals
  I  inputs of a projection, joined      W  taps of a convolution
  L  layers                              U  query heads of a group, H / G
  M  message width                       Y  channel groups of a convolution
  O  outputs of a projection, joined     Z  width of a recurrent state
  1  an axis of length one
"""

from jaxtyping import Array, Float, Int, Key, UInt

Tokens_BT = Int[Array, 'B T']
Tokens_BQ = Int[Array, 'B Q']
Tokens_BS = Int[Array, 'B S']
Count_B = Int[Array, 'B']
Seed_B = UInt[Array, 'B']
Keys_B = Key[Array, 'B']
Logits_BKV = Float[Array, 'B K V']
Features_BKP = Float[Array, 'B K P']
Hidden_BQD = Float[Array, 'B Q D']
Embed_VD = Float[Array, 'V D']

__all__ = [
  'Count_B',
  'Embed_VD',
  'Features_BKP',
  'Hidden_BQD',
  'Keys_B',
  'Logits_BKV',
  'Seed_B',
  'Tokens_BQ',
  'Tokens_BS',
  'Tokens_BT',
]
