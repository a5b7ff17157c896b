"""The training loop of one worker, and what watches it."""
