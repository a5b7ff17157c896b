"""Tells people what goes on: console, event log, notices, timeline."""
