"""Launchers, which start and stop worker processes. They never import TensorFlow."""
