"""How far confidences can be believed, before and after calibration."""

from absl import logging

from experiments import common
from spinejax import report
from spinejax.decode import acceptance, calibration
from spinejax.decode.loop import capacity_bucket
from spinejax.decode.request import whole
from spinejax.drafters import load_drafter
from spinejax.errors import InputError
from spinejax.report.paths import portable_text
from spinejax.target.loading import load_target


def measure(config, target, draft, sets, temperature: float) -> dict:
  """Fits on every other prompt, and judges on the rest."""
  prompts = [turns[:1] for one in sets for turns in one.turns]
  longest = max(len(target.tokenizer.encode_chat(turns)) for turns in prompts)
  rows = config.max_new_tokens + draft.drafter.slots + 1

  def observed(part):
    return calibration.observe(
      target, draft, part, min(config.batch, len(part)),
      max_new_tokens=config.max_new_tokens, temperature=temperature,
      seed=config.seed, capacity=capacity_bucket(longest + rows),
    )  # fmt: skip

  seen, held_out = observed(prompts[::2]), observed(prompts[1::2])
  found = calibration.fit(*seen)
  return {
    'target': target.name,
    'drafter': draft.drafter.name,
    'dataset': ','.join(one.name for one in sets),
    'temperature': temperature,
    'total': len(prompts),
    'rounds_fitted': len(seen[1]),
    'rounds_held_out': len(held_out[1]),
    'slot_temperatures': found,
    'ece_by_slot': calibration.error(*held_out),
    'ece_by_slot_calibrated': calibration.error(*held_out, found),
  }


def show(rows: list[dict]) -> None:
  """A line a drafter and temperature: errors as means over the slots."""

  def percent(values):
    return f'{sum(values) / len(values):.1%}'

  report.table.print_columns(
    [
      {
        'drafter': row['source'],
        'T': f'{row["temperature"]:g}',
        'error': percent(row['ece_by_slot']),
        'calibrated': percent(row['ece_by_slot_calibrated']),
        'rounds': str(row['rounds_held_out']),
      }
      for row in rows
    ],
    names=1,
  )


def main(config):
  started = report.results.now()
  common.file_name('name', config.name)
  common.positive(config, 'max_new_tokens', 'batch')
  whole('limit', config.limit, 0, 2**31)
  dtype = common.dtype(config.dtype)
  common.results(config, 'calibrate')
  sets = common.prompt_sets(config)
  if sum(map(len, sets)) < 2:
    raise InputError('prompts has one prompt, expected some to hold out')
  if not config.drafters or not config.temperatures:
    raise InputError('drafters and temperatures, expected at least one of each')
  target = load_target(config.target, dtype)
  acceptance.check(
    target, sets, temperatures=config.temperatures, batch=config.batch,
    max_new_tokens=config.max_new_tokens,
  )  # fmt: skip
  rows = []
  for source in config.drafters:
    draft = load_drafter(source, target, block=config.block or None)
    if not draft.drafter.taps:
      raise InputError(f'drafter {source!r} has no confidences')
    for temperature in config.temperatures:
      logging.info('%s at temperature %g', source, temperature)
      row = measure(config, target, draft, sets, temperature)
      rows.append({'source': portable_text(source)} | row)
  result = report.results.build(
    'calibrate', 'measured', rows, config=config.to_dict(), started=started
  )
  path = report.results.write(result, config.name, root=config.results)
  show(rows)
  print(path)


if __name__ == '__main__':
  common.run(main)
