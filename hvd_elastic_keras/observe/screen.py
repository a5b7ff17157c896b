"""Where the progress of a training ends up."""

from __future__ import annotations

import enum


class Screen(enum.Enum):
    """What can be shown there."""

    LINES = "lines"
    """A file, a pipe, or a launcher that writes to one."""
    TERMINAL = "terminal"
    """The terminal of this process, which trains alone."""
    LAUNCHER = "launcher"
    """The terminal of the launcher, which draws the progress itself."""
