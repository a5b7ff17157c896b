"""Reference configurations."""

DEFAULT = "made_up"
