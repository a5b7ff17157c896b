"""`run_function`: a function that elastic workers run."""
