"""HTTP over the engine; needs `pip install spinejax[serve]`."""
