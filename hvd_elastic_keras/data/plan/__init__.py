"""Assigns examples to the micro-batches of steps. Contains pure functions of numbers."""
