"""Code shared by the master, launchers and workers. Nothing here imports TensorFlow."""
