"""A worker's side of membership: master client, Horovod runtime, session."""
