"""Messages that arrive twice: a worker sends one again if it has not heard the answer."""

from __future__ import annotations

import collections

KEPT = 100
"""Message numbers remembered for each worker. A worker repeats one message at a time."""
MOST_WORKERS = 10_000
"""If there are more workers, the one that has been known for longest is forgotten."""


class RepeatedMessages:
    """Knows the newest messages of each worker by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, collections.deque[int]] = {}

    def is_repeated(self, worker_id: str, number: int) -> bool:
        """Whether this message has come before. Remembers the message."""
        known = self._numbers.setdefault(worker_id, collections.deque(maxlen=KEPT))
        if len(self._numbers) > MOST_WORKERS:
            del self._numbers[next(iter(self._numbers))]
        if number in known:
            return True
        known.append(number)
        return False
