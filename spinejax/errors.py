"""The one exception type for bad input."""


class InputError(ValueError):
  """Bad input from the user: one line that says what to change.

  Binaries print the message without a traceback; the library raises it before
  any computation starts.
  """
