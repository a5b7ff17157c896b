"""Programs for `doctor` that try out, in a process of their own, the things a worker needs."""
