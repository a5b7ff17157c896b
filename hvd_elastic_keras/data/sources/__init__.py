"""The sources of examples."""
