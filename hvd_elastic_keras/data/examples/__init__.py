"""Single examples and batches: their structure, preparation and comparison."""
