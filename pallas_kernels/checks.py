"""Checks of the fields of kernel configs, and limits of the hardware."""

SHARED_BYTES = 232448  # of a thread block on Hopper


def one_of(config, field: str, values: tuple) -> None:
  """Refuses any other value of a field."""
  value = getattr(config, field)
  if value not in values:
    raise ValueError(f'{field} = {value!r}, expected one of {values}')


def at_least(config, field: str, least: int) -> None:
  """Refuses what is not a whole number of at least that size."""
  value = getattr(config, field)
  if type(value) is not int or value < least:
    raise ValueError(f'{field} = {value!r}, expected an integer >= {least}')
