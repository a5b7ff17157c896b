"""What master, launchers and workers share. Nothing here imports TensorFlow."""
