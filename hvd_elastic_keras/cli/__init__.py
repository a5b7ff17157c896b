"""Command lines: flags, the check of a model, running a local job. Nothing here imports TensorFlow,
except `worker_main`, which is the process of a worker."""
