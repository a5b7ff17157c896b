"""Private names of Keras, and code right on top of them. Imports nothing above `common`."""
