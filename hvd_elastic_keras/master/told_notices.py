"""What workers want people to know is shown and recorded once per training."""

from __future__ import annotations

import msgspec

from hvd_elastic_keras.common.protocol import Notice
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog


class ToldNotices:
    """The notices so far: any worker may tell one again, such as the next rank 0."""

    def __init__(self, console: Console, events: EventLog) -> None:
        self._console = console
        self._events = events
        self._contents: set[bytes] = set()

    def tell(self, notice: Notice) -> None:
        """Shows and records a notice that no worker has told of this training."""
        content = msgspec.json.encode((notice.training, notice.text, notice.entry))
        if content in self._contents:
            return
        self._contents.add(content)
        if notice.text:
            self._console.raw(f"{notice.prefix}{notice.text}\n")
        if notice.entry is not None:
            self._events.write(notice.entry)
