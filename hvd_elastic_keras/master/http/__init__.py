"""The HTTP endpoint of the master: its messages, and the rendezvous store of Horovod."""
