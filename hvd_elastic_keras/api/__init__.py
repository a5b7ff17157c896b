"""The interface for users: callback, trainer, elastic.run, model modules."""
