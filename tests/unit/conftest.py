"""Settings for all unit tests: the same examples in every run, nothing written to the tree."""

from hypothesis import settings

settings.register_profile("unit", database=None, deadline=None, derandomize=True)
settings.load_profile("unit")
