"""Horovod's Gloo rendezvous store, one name space per round.

Horovod's client (`horovod/common/gloo/http_store.cc`) PUTs and GETs small values and asks for a
missing key again every 10 ms, on a new connection each time. Here a GET is held until the
key is there. When a round is closed, every waiting or later GET is answered with an *empty* value:
Gloo refuses an empty address at once, so that `hvd.init()` fails in milliseconds instead of
waiting for a peer that will never come (an HTTP error would be retried for 1.5 s).

The members of a mesh write their addresses under `<mesh>/<rank>`: one for each other member, in the
order of ranks. Each member then needs one address of each other member. Horovod as this project
builds it asks for them in one request, `<mesh>/addresses_for.<rank>.<size>`.

A value is written once and read by the others. Its writer deletes it when all members have met.
Values are kept compressed: those of 1000 members have 136 MB, most of which is padding.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence

from aiohttp import web

from hvd_elastic_keras.common import control

HOLD_S = 10.0
"""How long a GET is held before "not found" is answered; the client then asks again."""
EMPTY = b""
MOST_KEYS = 20_000
"""Limit for a round. Each member writes up to three keys."""
MOST_KEY_LENGTH = 1_000
MOST_VALUE_BYTES = 2**20
"""Limit for a value, such as a member's addresses for all others: 136 bytes each."""
_TOGETHER = 64
"""Members whose addresses are sorted out together: with 1000 members, they take 9 MB."""
_OF_MESH = re.compile(r"(.+)/addresses_for\.([0-9]{1,5})\.([0-9]{1,5})")
Mesh = tuple[str, int]
"""The name of a mesh and the number of its members."""


class RendezvousStore:
    """Values by round and key. To be used in one event loop only."""

    def __init__(self) -> None:
        self._packed: dict[int, dict[str, bytes]] = defaultdict(dict)
        self._meshes: dict[int, dict[Mesh, asyncio.Task[list[bytes]]]] = defaultdict(dict)
        self._waiting: dict[tuple[int, str], asyncio.Event] = {}
        self._closed_through = 0

    async def answer(self, request: web.Request, round_number: int) -> web.Response:
        """Answers a request of Horovod's client about a round."""
        key = request.match_info["key"]
        if request.method == "GET":
            of_mesh = _OF_MESH.fullmatch(key)
            if of_mesh:
                name, rank, size = of_mesh.groups()
                value = await self.addresses_for(round_number, (name, int(size)), int(rank))
            else:
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
            self._forget(old)  # long over: nobody asks for its keys
        self._packed[round_number][key] = packed
        event = self._waiting.pop((round_number, key), None)
        if event:
            event.set()
        return True

    def delete(self, round_number: int, key: str) -> None:
        """Forgets a value."""
        self._packed.get(round_number, {}).pop(key, None)
        meshes = self._meshes.get(round_number, {})
        for mesh in [m for m in meshes if m[0] == key.rpartition("/")[0] and meshes[m].done()]:
            del meshes[mesh]

    async def get(self, round_number: int, key: str) -> bytes | None:
        """Returns the value; an empty one if the round is closed; None after `HOLD_S` seconds."""
        if not self._settled(round_number, key):
            try:
                await asyncio.wait_for(self._until_settled(round_number, key), HOLD_S)
            except asyncio.TimeoutError:
                return None
        if round_number <= self._closed_through:
            return EMPTY
        packed = self._packed[round_number].get(key)
        return None if packed is None else zlib.decompress(packed)

    async def addresses_for(self, round_number: int, mesh: Mesh, rank: int) -> bytes | None:
        """Returns the addresses that all other members of a mesh have for a member, by their rank.

        Returns an empty value if the round is closed, and None after three times `HOLD_S` seconds:
        the client then asks for each address by itself.
        """
        if round_number <= self._closed_through:
            return EMPTY
        meshes = self._meshes[round_number]
        if mesh not in meshes:
            if not 1 < mesh[1] <= MOST_KEYS or len(meshes) >= MOST_KEYS:
                return None
            meshes[mesh] = asyncio.create_task(self._sorted_out(round_number, mesh))
        try:
            packed = await asyncio.wait_for(asyncio.shield(meshes[mesh]), 3 * HOLD_S)
        except asyncio.TimeoutError:
            return None
        if round_number <= self._closed_through:
            return EMPTY
        return zlib.decompress(packed[rank]) if rank < len(packed) else EMPTY

    async def _sorted_out(self, round_number: int, mesh: Mesh) -> list[bytes]:
        """Returns the compressed answers for all members; none if the round is closed meanwhile."""
        keys = [f"{mesh[0]}/{rank}" for rank in range(mesh[1])]
        for key in keys:
            await self._until_settled(round_number, key)
        known = self._packed.get(round_number, {})
        if not all(key in known for key in keys):
            return []
        # With 1000 members, this takes seconds.
        return await asyncio.to_thread(by_reader, [known[key] for key in keys])

    async def _until_settled(self, round_number: int, key: str) -> None:
        """Waits until there is a value, or the round is closed."""
        while not self._settled(round_number, key):
            event = self._waiting.setdefault((round_number, key), asyncio.Event())
            await event.wait()

    def close(self, round_number: int) -> None:
        """Ends this round and all before it."""
        self._closed_through = max(self._closed_through, round_number)
        for number in [n for n in {*self._packed, *self._meshes} if n <= self._closed_through]:
            self._forget(number)
        for number, key in [w for w in self._waiting if w[0] <= self._closed_through]:
            self._waiting.pop((number, key)).set()

    def _forget(self, round_number: int) -> None:
        self._packed.pop(round_number, None)
        self._meshes.pop(round_number, None)

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


def by_reader(packed: Sequence[bytes]) -> list[bytes]:
    """Returns the addresses that each member needs, from those that each member has written.

    Args:
      packed: for each member, compressed: one address for each other member, in the order of ranks.

    Returns:
      For each member, compressed: the address that each other member has for it, in the same order.
    """
    size = len(packed)
    result = []
    for first in range(0, size, _TOGETHER):
        readers = range(first, min(first + _TOGETHER, size))
        found: list[list[bytes]] = [[] for _ in readers]
        for writer, value in enumerate(map(zlib.decompress, packed)):
            width = len(value) // (size - 1)
            for reader, addresses in zip(readers, found, strict=True):
                if reader != writer:
                    start = (reader - (reader > writer)) * width
                    addresses.append(value[start : start + width])
        result += [zlib.compress(b"".join(a), zlib.Z_BEST_SPEED) for a in found]
    return result
