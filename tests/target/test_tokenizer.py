"""Tokenizers and chat templates against transformers; what is refused."""

import json

import numpy as np
import pytest

from spinejax.target.tokenizer import tokenizer_of_gguf, tokenizer_of_hf

CONTENTS = '{% for m in messages %}{{ m.content }}{% endfor %}'


@pytest.fixture
def folder(copy):
  return copy('qwen3')


@pytest.fixture(scope='module')
def tokenizer(golden):
  return tokenizer_of_hf(golden / 'qwen3')


@pytest.fixture(scope='module')
def expected(golden):
  return json.loads((golden / 'qwen3' / 'expected_text.json').read_text())


def edit_json(file, **changes):
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def render(folder, *contents):
  messages = [{'role': 'user', 'content': c} for c in contents]
  return tokenizer_of_hf(folder).render(messages)


def test_texts_encode_and_decode_as_in_transformers(tokenizer, expected):
  assert tokenizer.size == expected['size']
  for case in expected['texts']:
    assert tokenizer.encode(case['text']) == case['ids']
    decoded = tokenizer.decode(case['ids'], keep_special=True)
    assert decoded == case['decoded']
    decoded = tokenizer.decode(case['ids'])
    assert decoded == case['decoded_without_special']


def test_chats_render_as_in_transformers(tokenizer, expected):
  cases = [c for c in expected['chats'] if c['add_generation_prompt']]
  assert len(cases) == 3
  for case in cases:
    rendered = tokenizer.render(case['messages'])
    assert rendered == case['rendered']
    assert tokenizer.encode(rendered) == case['ids']


def test_many_at_once_as_one_by_one(tokenizer, expected, refused):
  texts = [case['text'] for case in expected['texts']]
  ids = [tokenizer.encode(text) for text in texts]
  assert tokenizer.encode_batch(texts) == ids
  assert tokenizer.decode_batch([np.array(x, np.int32) for x in ids]) == [
    tokenizer.decode(x) for x in ids
  ]
  turns = ['Hi.', ' {{ x }} ']
  assert tokenizer.encode_turns(turns) == [
    tokenizer.encode_chat([turn]) for turn in turns
  ]
  with refused("the text is not valid Unicode: '\\ud800' at character 1"):
    tokenizer.encode_batch(['a', 'b\ud800'])


def test_turns_alternate_between_user_and_assistant(tokenizer, expected):
  (case,) = [
    c
    for c in expected['chats']
    if c['add_generation_prompt'] and len(c['messages']) == 3
  ]
  turns = [m['content'] for m in case['messages']]
  assert tokenizer.encode_chat(turns) == case['ids']


def test_special_tokens_inside_a_text(tokenizer):
  (end,) = tokenizer.encode('<|im_end|>')
  ids = tokenizer.encode('a<|im_end|>b')
  assert ids == tokenizer.encode('a') + [end] + tokenizer.encode('b')
  assert tokenizer.decode(ids) == 'ab'
  assert tokenizer.decode(ids, keep_special=True) == 'a<|im_end|>b'
  assert end not in tokenizer.encode('<|im_end |>')


def test_stop_ids(tokenizer, expected, folder):
  end, pad = expected['eos_id'], expected['pad_id']
  assert tokenizer.stop_ids == (pad, end)
  # What ends an answer is configured, or one of the well-known tokens.
  edit_json(folder / 'generation_config.json', eos_token_id=7)
  assert tokenizer_of_hf(folder).stop_ids == (7, pad, end)
  (folder / 'generation_config.json').unlink()
  edit_json(folder / 'config.json', eos_token_id=[3, 5])
  assert tokenizer_of_hf(folder).stop_ids == (3, 5, pad, end)
  edit_json(folder / 'config.json', eos_token_id=None)
  settings = folder / 'tokenizer_config.json'
  edit_json(settings, eos_token={'content': '!', '__type': 'AddedToken'})
  (mark,) = tokenizer.encode('!')
  read = tokenizer_of_hf(folder)
  assert read.stop_ids == (mark, pad, end)
  assert read.specials == {'bos_token': '', 'eos_token': '!'}


def test_template_in_a_file_of_its_own(folder, expected):
  template = expected['chat_template']
  (folder / 'chat_template.jinja').write_text(template)
  edit_json(folder / 'tokenizer_config.json', chat_template=None)
  (case, *_) = expected['chats']
  rendered = tokenizer_of_hf(folder).render(case['messages'])
  assert rendered == case['rendered']
  # It wins over the one in the settings.
  edit_json(folder / 'tokenizer_config.json', chat_template='other')
  assert tokenizer_of_hf(folder).render(case['messages']) == rendered


def test_list_of_named_templates(folder, refused):
  settings = folder / 'tokenizer_config.json'
  named = [
    {'name': 'tool_use', 'template': 'tools'},
    {'name': 'default', 'template': CONTENTS},
  ]
  edit_json(settings, chat_template=named)
  assert render(folder, 'one', 'two') == 'onetwo'
  edit_json(settings, chat_template=named[:1])
  with refused('this target has no chat template; pass token ids'):
    render(folder, 'one')


def test_what_templates_may_use(folder):
  # Names that transformers provides, and its treatment of blank lines.
  template = """\
{% for m in messages %}
  {% if loop.index > 2 %}
    {% break %}
  {% endif %}
{{ eos_token }}{{ m.content }}
{% endfor %}
{{ bos_token }}{{ strftime_now('%Y')[:2] }}{{ add_generation_prompt }}"""
  edit_json(folder / 'tokenizer_config.json', chat_template=template)
  wanted = '<|im_end|>a\n<|im_end|>b\n20True'
  assert render(folder, 'a', 'b', 'c') == wanted


def test_no_template(folder, refused):
  edit_json(folder / 'tokenizer_config.json', chat_template=None)
  with refused('this target has no chat template; pass token ids'):
    render(folder, 'hi')
  (folder / 'tokenizer_config.json').unlink()
  with refused('this target has no chat template; pass token ids'):
    render(folder, 'hi')


def test_template_that_refuses_the_messages(tokenizer, refused):
  with refused('chat template: unknown role tool'):
    tokenizer.render([{'role': 'tool', 'content': '4'}])


@pytest.mark.parametrize(
  'template, message',
  [
    ('{% for %}', 'Expected an expression, got...'),
    ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of..."),
  ],
)
def test_broken_template(folder, refused, template, message):
  edit_json(folder / 'tokenizer_config.json', chat_template=template)
  with refused(f'chat template: {message}'):
    render(folder, 'hi')


def test_broken_tokenizer_files(folder, refused):
  file = folder / 'tokenizer_config.json'
  file.write_text('{')
  with refused(f'{file}: not valid JSON (...)'):
    tokenizer_of_hf(folder)
  file = folder / 'tokenizer.json'
  file.write_text(file.read_text()[:5000])
  with refused(f'{file}: not a tokenizer (...)'):
    tokenizer_of_hf(folder)
  file.unlink()
  with refused(f'{file}: no such file (the target has no tokenizer)'):
    tokenizer_of_hf(folder)


# Tokenizers of GGUF files, from their metadata.


def metadata(folder, **changes):
  """What a GGUF file would say about the tokenizer of a directory."""
  inner = json.loads((folder / 'tokenizer.json').read_text())
  vocab, added = inner['model']['vocab'], inner['added_tokens']
  tokens = sorted(vocab, key=vocab.get) + [t['content'] for t in added]
  settings = json.loads((folder / 'tokenizer_config.json').read_text())
  fields = {
    'model': 'gpt2',
    'pre': 'qwen2',
    'tokens': tokens,
    'token_type': [1] * len(vocab) + [3] * len(added),
    'merges': [' '.join(m) for m in inner['model']['merges']],
    'eos_token_id': tokens.index('<|im_end|>'),
    **changes,
  }
  fields = {f'tokenizer.ggml.{k}': v for k, v in fields.items()}
  return fields | {'tokenizer.chat_template': settings['chat_template']}


def test_gguf_tokenizer_is_that_of_the_directory(golden, tokenizer, expected):
  read = tokenizer_of_gguf(metadata(golden / 'qwen3'), 'x.gguf')
  assert (read.size, read.stop_ids) == (tokenizer.size, tokenizer.stop_ids)
  assert read.specials == tokenizer.specials
  for case in expected['texts']:
    assert read.encode(case['text']) == case['ids']
    assert read.decode(case['ids']) == case['decoded_without_special']
  (case, *_) = expected['chats']
  assert read.render(case['messages']) == case['rendered']


def test_gguf_pre_tokenizers_differ_in_digits(golden):
  def pieces(pre):
    read = tokenizer_of_gguf(metadata(golden / 'qwen3', pre=pre), 'x.gguf')
    split = read.inner.pre_tokenizer.pre_tokenize_str('ab 1234  5')
    return [piece.replace('\u0120', ' ') for piece, _ in split]

  assert pieces('qwen2') == ['ab', ' ', '1', '2', '3', '4', ' ', ' ', '5']
  assert pieces('llama-bpe') == ['ab', ' ', '123', '4', ' ', ' ', '5']
  assert pieces('smollm') == ['ab', ' ', '1', '2', '3', '4', '  ', '5']


@pytest.mark.parametrize('kind, pre', [('llama', 'default'), ('gpt2', 'gpt-2')])
def test_unsupported_gguf_tokenizer(golden, refused, kind, pre):
  message = (
    f'x.gguf: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; '
    'expected gpt2 with one of smollm, qwen2, llama-bpe'
  )
  with refused(message):
    tokenizer_of_gguf(metadata(golden / 'qwen3', model=kind, pre=pre), 'x.gguf')


@pytest.mark.parametrize('name', ['tokens', 'merges', 'token_type'])
def test_gguf_without_a_list_of_tokens(golden, refused, name):
  fields = metadata(golden / 'qwen3')
  del fields[f'tokenizer.ggml.{name}']
  with refused(f'x.gguf: metadata tokenizer.ggml.{name} is missing'):
    tokenizer_of_gguf(fields, 'x.gguf')
