"""Pallas kernels, one folder an operation: its specification in jnp
(`reference`), the public function (`api`) and a body for each platform."""
