"""Runs real jobs with real faults."""
