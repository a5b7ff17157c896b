"""Reference configurations."""

DEFAULT = "digits"
