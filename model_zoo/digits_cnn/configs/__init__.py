"""Reference configurations."""
