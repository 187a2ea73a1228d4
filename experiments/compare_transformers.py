"""Compares the speed of spinejax with that of Hugging Face transformers.

One run on one device, greedy, batch 1: all systems hold the same weights, and
each answers a prompt before any sees the next. The clock runs from token ids
to token ids, prefill included. Only this binary needs torch and transformers.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence

# Two libraries share the device: JAX must not take most of its memory, as it
# would when it starts.
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')

import jax
import numpy as np
from rich import console, progress

from experiments import common, decode
from spinejax import report
from spinejax.decode import compare
from spinejax.decode.generate import generate
from spinejax.errors import InputError
from spinejax.target.assemble import layer_to_tensors
from spinejax.target.config import TargetConfig, config_of_hf
from spinejax.target.loading import Target
from spinejax.target.model import TargetParams

BASELINE = 'transformers-static-compiled'

# From the ids of a prompt to those of its answer, and the rounds it took where
# they are known.
System = Callable[[list[int]], tuple[list[int], int | None]]


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a system made of one prompt."""

  tokens: list[int]
  rounds: int | None
  seconds: float


@dataclasses.dataclass(frozen=True)
class Peer:
  """What transformers runs, by name, and what torch counts as it compiles."""

  systems: dict[str, System]
  counters: Mapping[str, Mapping[str, int]]

  @property
  def graphs(self) -> int:
    """Compiled so far."""
    return self.counters['stats']['unique_graphs']

  @property
  def skips(self) -> int:
    """Graphs that are launched kernel by kernel, not as a CUDA graph."""
    return self.counters['inductor']['cudagraph_skips']


def settings_of(config) -> compare.Settings:
  """The settings of decoding; refuses what can be seen before loading."""
  common.file_name('name', config.name)
  decode.check_drafters(config)
  return compare.Settings(config.max_new_tokens)


def libraries():
  """The modules torch and transformers, which spinejax does not require."""
  try:
    import torch
    import transformers
  except ModuleNotFoundError as error:
    raise InputError(
      f'{error.name} is not installed; run: pip install torch transformers'
    ) from None
  return torch, transformers


def hf_config(cfg: TargetConfig) -> dict:
  """A target's shape as the fields of a Hugging Face `config.json`.

  Raises:
    InputError: transformers has no such model under the name of its family.
  """
  rope = {'rope_type': 'default', 'rope_theta': cfg.rope_base}
  if scaling := cfg.rope_scaling:
    rope |= {
      'rope_type': 'llama3',
      'factor': scaling.factor,
      'low_freq_factor': scaling.low_freq_factor,
      'high_freq_factor': scaling.high_freq_factor,
      'original_max_position_embeddings': scaling.original_max_position,
    }
  fields = {
    'model_type': cfg.family,
    'vocab_size': cfg.vocab,
    'hidden_size': cfg.width,
    'num_hidden_layers': cfg.layers,
    'num_attention_heads': cfg.heads,
    'num_key_value_heads': cfg.kv_heads,
    'head_dim': cfg.head_dim,
    'intermediate_size': cfg.ffn,
    'rms_norm_eps': cfg.norm_eps,
    'rope_parameters': rope,
    'tie_word_embeddings': cfg.tied,
    'max_position_embeddings': cfg.max_position,
  }
  # Biases and norms of heads go with the family, but a GGUF may mix them.
  if config_of_hf(fields) != cfg:
    raise InputError(
      f'target: transformers has no {cfg.family} with qkv_bias {cfg.qkv_bias} '
      f'and qk_norm {cfg.qk_norm}'
    )
  return fields


def hf_weights(params: TargetParams) -> dict[str, np.ndarray]:
  """A target's weights by the names they have in transformers, not fused.

  The head is among them also where it is the embedding.
  """
  params = jax.device_get(params)
  weights = {
    'model.embed_tokens.weight': params.embed_VD,
    'model.norm.weight': params.norm_D,
    'lm_head.weight': params.head_VD,
  }
  for i, layer in enumerate(params.layers):
    weights |= layer_to_tensors(layer, f'model.layers.{i}.')
  return weights


def hf_model(torch, transformers, target: Target):
  """The target as a model of transformers, on the device that JAX uses."""
  device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
  if device == 'cuda' and not torch.cuda.is_available():
    raise InputError(f'torch {torch.__version__} finds no GPU, but JAX does')
  config = transformers.AutoConfig.for_model(
    **hf_config(target.cfg),
    bos_token_id=None,
    eos_token_id=list(target.tokenizer.stop_ids) or None,
    pad_token_id=0,  # not used in a batch of one
  )
  dtype = getattr(torch, target.params.embed_VD.dtype.name)
  with torch.device(device):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
  # By way of float32, for NumPy's bfloat16 is none that torch knows; exact.
  model.load_state_dict({
    name: torch.from_numpy(np.array(x, np.float32))
    for name, x in hf_weights(target.params).items()
  })  # fmt: skip
  return model.eval()


def transformers_peer(torch, transformers, target, capacity, new) -> Peer:
  """What a user of transformers would take for greedy decoding, batch 1."""
  model = hf_model(torch, transformers, target)
  # Kept from prompt to prompt: with a cache at other addresses, the CUDA
  # graphs would be recorded anew.
  cache = transformers.StaticCache(config=model.config, max_cache_len=capacity)
  # The default settings, which `generate` would apply by itself on a GPU only.
  compiled = transformers.CompileConfig()
  compiled._compile_all_devices = True

  def answer(ids, **how):
    ids_BT = torch.tensor([ids], device=model.device)
    out_BT = model.generate(
      ids_BT, attention_mask=torch.ones_like(ids_BT), do_sample=False,
      max_new_tokens=new, **how,
    )  # fmt: skip
    if model.device.type == 'cuda':
      torch.cuda.synchronize()
    return out_BT[0, len(ids) :].tolist(), None

  def static(ids):
    cache.reset()
    return answer(ids, past_key_values=cache, compile_config=compiled)

  return Peer(
    {
      'transformers-dynamic': answer,
      BASELINE: static,
      'transformers-prompt-lookup': functools.partial(
        answer, prompt_lookup_num_tokens=10
      ),
    },
    torch._dynamo.utils.counters,
  )


def spinejax_systems(target, drafters, capacity, new) -> dict[str, System]:
  """Plain decoding and the drafters, as systems."""

  def answer(model, ids):
    done = generate(
      target, model, [ids], max_new_tokens=new, capacity=capacity
    ).completions[0]
    return done.tokens.tolist(), done.rounds

  return {
    name: functools.partial(answer, model) for name, model in drafters.items()
  }


def measure(
  systems: Mapping[str, System], prompts: Sequence[list[int]], name: str
) -> dict[str, list[Answer]]:
  """Answers of all systems to all prompts; the clock is stopped in between."""
  answers = {system: [] for system in systems}
  for ids in progress.track(
    prompts, name, console=console.Console(stderr=True), transient=True
  ):
    for system, answer in systems.items():
      began = time.perf_counter()
      tokens, rounds = answer(ids)
      took = time.perf_counter() - began
      answers[system].append(Answer(tokens, rounds, took))
  return answers


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
  """How many tokens two answers share before they part."""
  pairs = zip(a, b, strict=False)
  parted = (i for i, (x, y) in enumerate(pairs) if x != y)
  return next(parted, min(len(a), len(b)))


def rows(answers: Mapping[str, Sequence[Answer]], **settings) -> list[dict]:
  """One metric row a system; `settings` are part of each.

  Speed-ups are ratios of tokens a second, because in bfloat16 answers part,
  and may then end at different lengths. How many answers are the very tokens
  of plain decoding (`agree`), and for how many tokens they are the same
  (`common_prefix`, mean over prompts), is for information.
  """
  slow = [a.seconds / len(a.tokens) for a in answers[BASELINE]]
  table = []
  for name, given in answers.items():
    emitted = [len(a.tokens) for a in given]
    seconds = [a.seconds for a in given]
    row = settings | {
      'drafter': name,
      'total': len(given),
      'tokens_per_s': sum(emitted) / sum(seconds),
      'emitted_by_prompt': emitted,
      'seconds_by_prompt': seconds,
    }
    ran = [a.rounds for a in given]
    if None not in ran:
      tau = report.tokens_per_round(emitted, ran)
      row['tokens_per_round'] = tau.value
      row['tokens_per_round_low'] = tau.low
      row['tokens_per_round_high'] = tau.high
    if name != BASELINE:
      fast = [s / n for s, n in zip(seconds, emitted, strict=True)]
      faster = report.speedup(slow, fast).median
      row['speedup_vs_static'] = faster.value
      row['speedup_vs_static_low'] = faster.low
      row['speedup_vs_static_high'] = faster.high
    if name != 'plain':
      pairs = list(zip(answers['plain'], given, strict=True))
      row['agree'] = sum(a.tokens == b.tokens for a, b in pairs)
      same = [common_prefix(a.tokens, b.tokens) for a, b in pairs]
      row['common_prefix'] = sum(same) / len(same)
    table.append(row)
  return table


def show(table: Sequence[Mapping]) -> None:
  """Prints metric rows."""
  lines = []
  for row in table:
    faster = agree = prefix = '-'
    if 'speedup_vs_static' in row:
      faster = f'{row["speedup_vs_static"]:.2f}x'
      if (low := row['speedup_vs_static_low']) is not None:
        faster += f' [{low:.2f}, {row["speedup_vs_static_high"]:.2f}]'
    if 'agree' in row:
      agree = f'{row["agree"]}/{row["total"]}'
      prefix = f'{row["common_prefix"]:.1f}'
    lines.append({
      'drafter': row['drafter'],
      'dataset': row['dataset'],
      'tokens/s': f'{row["tokens_per_s"]:.1f}',
      'speed-up': faster,
      'agree': agree,
      'prefix': prefix,
    })  # fmt: skip
  notes = [
    'tokens/s: of one answer after the other, prefill included',
    f'speed-up: in tokens/s, over {BASELINE}, median over prompts',
    '[...]: 95 % interval, bootstrap over prompts',
    'agree: answers that are the very tokens of plain',
    'prefix: tokens before an answer parts from that of plain, mean',
  ]
  if any(row['compiled_while_timed'] for row in table):
    notes.append(f'{BASELINE} compiled while the clock ran: too slow here')
  if any(row['cudagraph_skips'] for row in table):
    notes.append(f'{BASELINE} ran without CUDA graphs')
  report.table.print_columns(lines, names=2)
  print('\n'.join(notes))


def main(config):
  started, settings = report.results.now(), settings_of(config)
  sets, dtype = decode.prompt_sets(config), common.dtype(config.dtype)
  common.results(config, 'compare_transformers')
  torch, transformers = libraries()
  target, drafters = decode.load(config, dtype)
  prompts = {
    one.name:
    compare.encode(target, [turns[:1] for turns in one.turns], settings)
    for one in sets
  }  # fmt: skip
  every = sum(prompts.values(), [])
  capacity = compare.capacity_for(drafters, every, settings)
  new = config.max_new_tokens
  peer = transformers_peer(torch, transformers, target, capacity, new)
  systems = peer.systems | spinejax_systems(target, drafters, capacity, new)
  # Both ends, so that no length is new to what was compiled.
  measure(systems, [max(every, key=len), min(every, key=len)], 'warm-up')
  if not peer.graphs:
    raise InputError(f'transformers {transformers.__version__} did not compile')
  table = []
  for name, ids in prompts.items():
    compiled = peer.graphs
    answers = measure(systems, ids, name)
    table += rows(
      answers, target=target.name, dataset=name, temperature=0.0,
      dtype=config.dtype, batch=1, capacity=capacity, max_new_tokens=new,
      compiled_while_timed=peer.graphs - compiled, cudagraph_skips=peer.skips,
    )  # fmt: skip
  print(
    f'measured on {report.results.device()[0]}\n{target.name}, {config.dtype}, '
    f'greedy, batch 1, at most {new} tokens each\n'
  )
  show(table)
  result = report.results.build(
    'compare_transformers', 'measured', table, config=config.to_dict(),
    started=started,
  )  # fmt: skip
  for library in (torch, transformers):
    result['versions'][library.__name__] = library.__version__
  path = report.results.write(result, config.name, root=config.results)
  report.runs.log(
    common.logs(config, 'compare_transformers'), config=config.to_dict(),
    points=report.runs.points_of(table),
  )  # fmt: skip
  print(path)


if __name__ == '__main__':
  common.run(main)
