"""The training loop of one worker, and the observers that watch it."""
