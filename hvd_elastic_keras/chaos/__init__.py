"""Breaks a running job from outside, on purpose, and reports what that has cost."""
