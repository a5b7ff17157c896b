"""Observers and policies of a training: each plugs into the loop."""
