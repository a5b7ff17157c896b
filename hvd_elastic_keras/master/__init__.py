"""The master: decides membership in rounds. It never imports TensorFlow."""
