"""Reference configurations."""

DEFAULT = "python_manual"
