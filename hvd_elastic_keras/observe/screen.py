"""The place where the progress of a training is shown."""

from __future__ import annotations

import enum


class Screen(enum.Enum):
    """The kinds of places, which differ in what they can show."""

    LINES = "lines"
    """A file or a pipe of this process, which trains alone."""
    TERMINAL = "terminal"
    """The terminal of this process, which trains alone."""
    LAUNCHER = "launcher"
    """The output of the launcher, which draws the progress itself or writes lines about it."""
