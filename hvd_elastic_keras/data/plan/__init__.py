"""Which examples belong to which micro-batch of which step. Pure functions of numbers."""
