"""Durable copies of the training state."""
