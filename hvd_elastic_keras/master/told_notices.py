"""Shows and records the notices that workers send to people, each once per training."""

from __future__ import annotations

import msgspec

from hvd_elastic_keras.common.protocol import Notice
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog


class ToldNotices:
    """Remembers the notices so far: another worker, such as the next rank 0, may repeat one."""

    def __init__(self, console: Console, events: EventLog) -> None:
        self._console = console
        self._events = events
        self._contents: set[bytes] = set()

    def tell(self, notice: Notice) -> None:
        """Shows and records a notice, unless a worker has sent it before in its training."""
        content = msgspec.json.encode((notice.training, notice.text, notice.entry))
        if content in self._contents:
            return
        self._contents.add(content)
        if notice.text:
            self._console.raw(f"{notice.prefix}{notice.text}\n")
        if notice.entry is not None:
            self._events.write(notice.entry)
