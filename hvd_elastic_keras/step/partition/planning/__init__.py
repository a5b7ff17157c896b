"""Plans how several workers compute the graph of a step. Nothing is computed here."""
