"""Proves that every example was used exactly once: writes ledgers of the steps and judges them."""
