"""Horovod's names for the functions of this package."""
