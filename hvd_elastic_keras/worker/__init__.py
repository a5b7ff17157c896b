"""A worker's side of membership: client of the master, Horovod's runtime, session."""
