"""A server for OpenAI's clients: SmolLM2-135M with its DSpine.

Claim: existing clients and load generators can be pointed at it.
Hardware: any; compiling takes one to three minutes on two CPU cores, on which
one request at a time gets about 20 tokens a second.
Commands:
  python -m experiments.serve --config=configs/serve.py
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages":
    [{"role": "user", "content": "What is a prime number?"}], "stream": true}'
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.target = 'smollm2-135m'
  c.model = ''  # the name that clients use; '': the target's
  c.drafter = 'smollm2-135m-dspine'  # or plain
  c.block = 4  # rows that a round verifies; 16 on a GPU
  c.dtype = 'float32'  # bfloat16 on a GPU
  c.mesh = ''  # devices: 'model=2' splits the model; '' takes one

  # Drafts as much as pays at the load of the moment (docs/scheduling.md). What
  # a seed draws at a temperature above 0 then depends on what else is served.
  c.schedule = False

  # Whoever can reach it can use it: 0.0.0.0 opens it to the network.
  c.host = '127.0.0.1'
  c.port = 8000

  # See `spinejax.decode.batch.Settings`.
  c.engine = ml_collections.ConfigDict()
  c.engine.slots = 4
  c.engine.capacity = 2048
  c.engine.readers = 1
  c.engine.chunks = (64,)  # the prefix cache's blocks, too
  c.engine.widths = (1,)
  c.engine.rounds = 4
  c.engine.prefix_blocks = 32
  c.engine.queue = 64

  # See `spinejax.serve.schema.Limits`.
  c.limits = ml_collections.ConfigDict()
  c.limits.max_tokens = 256
  c.limits.timeout_s = 600.0
  c.limits.body = 2**20
  c.limits.bodies = 512  # on their way at a time
  c.limits.body_s = 30.0
  return c
