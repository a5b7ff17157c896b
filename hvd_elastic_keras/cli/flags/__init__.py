"""The flags of `run`, and where their values come from."""
