"""Rounds of one prompt for TensorBoard: as text, as pictures, as a profile."""

import pathlib

import jax
import numpy as np

from spinejax.decode import trace
from spinejax.drafters.inside import Inside, look_inside
from spinejax.report import figures, rounds, runs
from spinejax.report.tensorboard import Writer
from spinejax.sharding import DATA


def write(folder: pathlib.Path, target, drafters, ids, config) -> None:
  """Adds to the run of each drafter what it did with one prompt.

  Args:
    folder: of the binary's run, see `report.runs`.
    drafters: by name; plain decoding has nothing to show.
    ids: the prompt.
    config: `inspect`, the number of rounds; `profile`, whether to profile one;
      and those of decoding.
  """
  if target.mesh is not None and target.mesh.shape[DATA] > 1:
    print('inspect: one request cannot be split over data; none is shown')
    return
  text = rounds.shown(target.tokenizer)
  law = dict(
    temperature=config.temperature, top_k=config.top_k, top_p=config.top_p
  )
  for name, draft in drafters.items():
    if draft.drafter.name == 'plain':
      continue
    state = trace.prefilled(
      target, draft, ids, config.max_new_tokens, config.seed
    )
    seen = trace.trace(target, draft, state, config.inspect, **law)
    lines = [rounds.Line.of(one, text) for one in seen]
    title = f'{target.name}, {name}'
    here = runs.folder_of(folder, name)
    with Writer(here) as writer:
      writer.text(0, 'rounds', rounds.to_markdown(lines))
      timeline = rounds.timeline(lines, title=title, label='measured')
      writer.image(0, 'rounds/timeline', figures.to_image(timeline))
      if draft.drafter.name == 'dspine' and draft.drafter.cfg.refine:
        inside = look_inside(target.params, draft, seen[-1].state)
        for tag, figure in pictures(inside, seen[-1], text, title).items():
          writer.image(0, tag, figures.to_image(figure))
    if config.profile:
      trace.profile(target, draft, state, here, **law)


def pictures(inside: Inside, one: trace.Seen, text, title: str) -> dict:
  """What a DSpine block holds, as figures by tag."""
  inside = jax.device_get(inside)

  def words(ids):
    return [text(x) for x in ids]

  same = dict(label='measured')
  walk = words(inside.walk_S)
  drawn = {
    'dspine/features': rounds.by_layer(
      [words(row) for row in inside.heard_LS], walk, kept=one.accepted,
      title=f'{title}: token nearest to the feature', **same,
    ),
    'dspine/layers': rounds.by_layer(
      [words(row) for row in inside.said_LS], walk, kept=one.accepted,
      title=f'{title}: best token by the head', **same,
    ),
    'dspine/gates': rounds.heat(
      inside.gate_LSM.mean(-1), title=f'{title}: gates', unit='gate, mean',
      **same,
    ),
  }  # fmt: skip
  chosen_S = [int(one.state.anchor_B[0]), *inside.walk_S[:-1]]
  for slot in sorted({min(1, len(walk) - 1), len(walk) // 2}):
    drawn[f'dspine/transition_{slot + 1}'] = rounds.transition(
      inside.scores_SNN[slot], words(inside.before_SN[slot]),
      words(inside.candidates_SN[slot]),
      int(np.argmax(inside.before_SN[slot] == chosen_S[slot])),
      title=f'{title}: transition table of slot {slot + 1}', **same,
    )  # fmt: skip
  return drawn
