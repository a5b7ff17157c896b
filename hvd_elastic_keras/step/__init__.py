"""The atomic step: micro-batches, one grouped allreduce, then all assignments at once."""
