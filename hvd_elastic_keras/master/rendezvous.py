"""Horovod's Gloo rendezvous store, one name space per round.

Horovod's client (`horovod/common/gloo/http_store.cc`) PUTs and GETs small values and asks for a
missing key again every 10 ms, on a new connection each time. Here a GET is held until the
key is there. When a round is closed, every waiting or later GET is answered with an *empty* value:
Gloo refuses an empty address at once, so that `hvd.init()` fails in milliseconds instead of
waiting for a peer that will never come (an HTTP error would be retried for 1.5 s).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

HOLD_S = 10.0
"""How long a GET is held before "not found" is answered; the client then asks again."""
EMPTY = b""


class RendezvousStore:
    """Values by round and key. Used from one event loop only."""

    def __init__(self) -> None:
        self._values: dict[int, dict[str, bytes]] = defaultdict(dict)
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}
        self._closed_through = 0

    def put(self, round_number: int, key: str, value: bytes) -> None:
        """Stores a value and releases those who wait for it; ignored if the round is closed."""
        if round_number <= self._closed_through:
            return
        for old in [n for n in self._values if n < round_number - 1]:
            del self._values[old]  # long over: nobody asks for its keys
        self._values[round_number][key] = value
        event = self._waiting.pop((round_number, key), None)
        if event:
            event.set()

    async def get(self, round_number: int, key: str) -> bytes | None:
        """The value, an empty one if the round is closed, or None after `HOLD_S` seconds."""
        if not self._settled(round_number, key):
            event = self._waiting.setdefault((round_number, key), asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), HOLD_S)
            except asyncio.TimeoutError:
                return None
        if round_number <= self._closed_through:
            return EMPTY
        return self._values[round_number].get(key)

    def close(self, round_number: int) -> None:
        """Ends this round and all before it."""
        self._closed_through = max(self._closed_through, round_number)
        for number in [n for n in self._values if n <= self._closed_through]:
            del self._values[number]
        for number, key in [w for w in self._waiting if w[0] <= self._closed_through]:
            self._waiting.pop((number, key)).set()

    def _settled(self, round_number: int, key: str) -> bool:
        return round_number <= self._closed_through or key in self._values[round_number]
