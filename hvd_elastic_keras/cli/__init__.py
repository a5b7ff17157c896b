"""Command lines: flags, the check of a model, running a local job.

No module here imports TensorFlow except `worker_main`, the program of a worker."""
