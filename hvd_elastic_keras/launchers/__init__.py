"""Start and stop worker processes. They never import TensorFlow."""
