"""One worker that joins a job whose master runs elsewhere."""
