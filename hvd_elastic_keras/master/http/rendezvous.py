"""Horovod's Gloo rendezvous store, one name space per round.

Horovod's client (`horovod/common/gloo/http_store.cc`) PUTs and GETs small values and asks for a
missing key again every 10 ms, on a new connection each time. Here a GET is held until the
key is there. When a round is closed, every waiting or later GET is answered with an *empty* value:
Gloo refuses an empty address at once, so that `hvd.init()` fails in milliseconds instead of
waiting for a peer that will never come (an HTTP error would be retried for 1.5 s).

A value is written once and read by the others. Its writer deletes it when all members have met.
Values are kept compressed: those of 1000 members have 136 MB, most of which is padding.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections import defaultdict

from aiohttp import web

from hvd_elastic_keras.common import control

HOLD_S = 10.0
"""How long a GET is held before "not found" is answered; the client then asks again."""
EMPTY = b""
MOST_KEYS = 20_000
"""Limit for a round. Each member writes twelve keys."""
MOST_KEY_LENGTH = 1_000
MOST_VALUE_BYTES = 2**20
"""Limit for a value, such as a member's addresses for all others: 136 bytes each."""


# All members read the values in the same order at about the same time.
_unpacked = functools.lru_cache(maxsize=64)(zlib.decompress)


class RendezvousStore:
    """Values by round and key. To be used in one event loop only."""

    def __init__(self) -> None:
        self._packed: dict[int, dict[str, bytes]] = defaultdict(dict)
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}
        self._closed_through = 0

    async def answer(self, request: web.Request, round_number: int) -> web.Response:
        """Answers a request of Horovod's client about a round."""
        key = request.match_info["key"]
        if request.method == "GET":
            value = await self.get(round_number, key)
            return web.Response(status=404) if value is None else web.Response(body=value)
        if request.method == "PUT":
            taken = self.put(round_number, key, await request.read())
            return web.Response(status=200 if taken else control.CONFLICT)
        if request.method == "DELETE":
            self.delete(round_number, key)
        return web.Response()

    def put(self, round_number: int, key: str, value: bytes) -> bool:
        """Stores a value and releases the requests that wait for it.

        Returns whether the value is accepted. It is refused if the key has another value already,
        or if a limit is exceeded. If the round is closed, it is accepted but ignored.
        """
        if round_number <= self._closed_through:
            return True
        packed = zlib.compress(value, zlib.Z_BEST_SPEED)
        if not self._has_room(round_number, key, value, packed):
            return False
        for old in [n for n in self._packed if n < round_number - 1]:
            del self._packed[old]  # long over: nobody asks for its keys
        self._packed[round_number][key] = packed
        event = self._waiting.pop((round_number, key), None)
        if event:
            event.set()
        return True

    def delete(self, round_number: int, key: str) -> None:
        """Forgets a value."""
        self._packed.get(round_number, {}).pop(key, None)

    async def get(self, round_number: int, key: str) -> bytes | None:
        """Returns the value; an empty one if the round is closed; None after `HOLD_S` seconds."""
        if not self._settled(round_number, key):
            event = self._waiting.setdefault((round_number, key), asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), HOLD_S)
            except asyncio.TimeoutError:
                return None
        if round_number <= self._closed_through:
            return EMPTY
        packed = self._packed[round_number].get(key)
        return None if packed is None else _unpacked(packed)

    def close(self, round_number: int) -> None:
        """Ends this round and all before it."""
        self._closed_through = max(self._closed_through, round_number)
        for number in [n for n in self._packed if n <= self._closed_through]:
            del self._packed[number]
        for number, key in [w for w in self._waiting if w[0] <= self._closed_through]:
            self._waiting.pop((number, key)).set()

    def _has_room(self, round_number: int, key: str, value: bytes, packed: bytes) -> bool:
        known = self._packed.get(round_number, {})
        if key in known:
            return known[key] == packed
        return (
            len(known) < MOST_KEYS
            and len(key) <= MOST_KEY_LENGTH
            and len(value) <= MOST_VALUE_BYTES
        )

    def _settled(self, round_number: int, key: str) -> bool:
        return round_number <= self._closed_through or key in self._packed[round_number]
