"""Private names of Keras, and what is built right on them. Imports nothing above `common`."""
