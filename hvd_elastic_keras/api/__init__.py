"""What users call: callback, trainer, elastic.run, model modules."""
