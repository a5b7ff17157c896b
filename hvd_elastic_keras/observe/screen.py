"""Where the progress of a training ends up."""

from __future__ import annotations

import enum


class Screen(enum.Enum):
    """What can be shown there."""

    LINES = "lines"
    """A file or a pipe of this process, which trains alone."""
    TERMINAL = "terminal"
    """The terminal of this process, which trains alone."""
    LAUNCHER = "launcher"
    """Wherever the launcher writes: it draws the progress itself, or writes lines of it."""
