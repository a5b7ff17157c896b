"""What the master serves: its messages, and the rendezvous store of Horovod."""
