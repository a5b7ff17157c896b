"""The atomic step, its plan, and the training loop."""
