"""Reference configurations."""

DEFAULT = "docstrings"
