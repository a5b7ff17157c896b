"""Proves that every example was used exactly once: ledgers of the steps, and what they say."""
