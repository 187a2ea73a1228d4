"""Speculative decoding: one pure round, and its compiled loop."""

from spinejax.decode.batch import Settings
from spinejax.decode.engine import Engine
from spinejax.decode.generate import (
  Completion,
  Generation,
  collect,
  start,
)
from spinejax.decode.loop import capacity_bucket, prefill_chunk, run_rounds
from spinejax.decode.request import encode_prompts
from spinejax.decode.round import Params, Round, commit, prefill, step
from spinejax.decode.schedule import PLAIN, Schedule
from spinejax.decode.scheduler import Scheduling
from spinejax.decode.state import DecodeState, init_state
from spinejax.decode.ticket import Overloaded, Request, Ticket

# Not the function named like its module: it would hide it.
__all__ = [
  'Completion',
  'DecodeState',
  'Engine',
  'Generation',
  'Overloaded',
  'PLAIN',
  'Params',
  'Request',
  'Round',
  'Schedule',
  'Scheduling',
  'Settings',
  'Ticket',
  'capacity_bucket',
  'collect',
  'commit',
  'encode_prompts',
  'init_state',
  'prefill',
  'prefill_chunk',
  'run_rounds',
  'start',
  'step',
]
