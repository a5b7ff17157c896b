"""Programs that try in a process of their own what a worker needs, for `doctor`."""
