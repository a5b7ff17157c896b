"""What is tried out before the first step: whether a model trains as in plain Keras."""
