"""Models that are ready to be trained: each package here is a model module."""
