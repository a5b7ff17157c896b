"""Reference configurations."""

DEFAULT = "digit_scenes"
