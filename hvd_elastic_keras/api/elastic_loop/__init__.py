"""Training loops that users write themselves, made elastic."""
