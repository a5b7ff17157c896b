"""The result of a check, as a value. `doctor` prints one line for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

OK = "ok"
WARNING = "warning"
"""Jobs run, but something may be missing or slow."""
PROBLEM = "problem"
"""No job runs until this is fixed."""
CHECK_WIDTH = 15


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      level: "ok", "warning" or "problem".
      check: the thing that was checked, in a word or two.
      found: the state that was found.
      expected: the state that should be; empty if all is well.
      remedy: advice, if possible a command; empty if there is nothing to do.
    """

    level: str
    check: str
    found: str
    expected: str = ""
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding in one line, for people.

        >>> print(Finding("problem", "Python", "3.9.2", "3.10 to 3.13", "Install one.").line)
        problem  Python          3.9.2; expected 3.10 to 3.13. Install one.
        """
        text = f"{self.found}; expected {self.expected}" if self.expected else self.found
        if self.remedy:
            text = f"{text.rstrip('.')}. {self.remedy}"
        return f"{self.level:<8} {self.check:<{CHECK_WIDTH}} {' '.join(text.split())}"


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 0 if nothing prevents a job from running, else 1.

    >>> exit_code([Finding("ok", "a", ""), Finding("warning", "b", "")])
    0
    """
    return int(any(finding.level == PROBLEM for finding in findings))
