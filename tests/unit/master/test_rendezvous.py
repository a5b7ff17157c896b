"""Horovod's rendezvous store: values wait for readers and readers for values."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from hvd_elastic_keras.master.http import rendezvous
from hvd_elastic_keras.master.http.rendezvous import EMPTY, RendezvousStore, by_reader


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, timeout=60.0))


def test_a_value_that_is_there_is_given_at_once() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        store.put(1, "a", b"x")
        assert await store.get(1, "a") == b"x"

    run(scenario())


def test_a_get_is_held_until_the_value_comes() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        readers = [asyncio.create_task(store.get(1, "a")) for _ in range(3)]
        await asyncio.sleep(0)
        store.put(1, "b", b"other")
        store.put(2, "a", b"other round")
        await asyncio.sleep(0.01)
        assert not any(reader.done() for reader in readers)
        store.put(1, "a", b"x")
        assert await asyncio.gather(*readers) == [b"x"] * 3

    run(scenario())


def test_a_held_get_gives_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 0.01)

    async def scenario() -> None:
        store = RendezvousStore()
        assert await store.get(1, "a") is None
        store.put(1, "a", b"x")
        assert await store.get(1, "a") == b"x"

    run(scenario())


def test_closing_a_round_answers_all_its_readers_with_an_empty_value() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        store.put(2, "here", b"x")
        old, new = (asyncio.create_task(store.get(number, "a")) for number in (2, 3))
        await asyncio.sleep(0)
        store.close(2)
        assert await old == EMPTY
        assert await store.get(2, "here") == EMPTY
        assert await store.get(1, "never") == EMPTY
        assert not new.done(), "later rounds are not touched"
        store.put(2, "a", b"late")
        assert await store.get(2, "a") == EMPTY
        store.put(3, "a", b"y")
        assert await new == b"y"

    run(scenario())


def test_no_value_takes_the_place_of_another_until_its_writer_deletes_it() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        assert store.put(1, "a", b"x")
        assert store.put(1, "a", b"x"), "the answer to the first was lost"
        assert not store.put(1, "a", b"y")
        assert await store.get(1, "a") == b"x"
        store.delete(1, "a")
        store.delete(1, "never")
        assert store.put(1, "a", b"y")
        assert await store.get(1, "a") == b"y"

    run(scenario())


def test_a_round_has_so_many_keys_and_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MOST_KEYS", 2)
    monkeypatch.setattr(rendezvous, "MOST_KEY_LENGTH", 3)
    monkeypatch.setattr(rendezvous, "MOST_VALUE_BYTES", 4)
    store = RendezvousStore()
    assert not store.put(1, "long", b"x")
    assert not store.put(1, "a", b"large")
    assert store.put(1, "abc", b"four")
    assert store.put(1, "b", b"x")
    assert not store.put(1, "c", b"x")
    assert store.put(2, "c", b"x"), "each round has room of its own"
    store.close(2)
    assert store.put(2, "a closed round", b"takes and forgets")


def test_closing_an_older_round_again_opens_nothing() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        store.close(5)
        store.close(2)
        assert await store.get(4, "a") == EMPTY

    run(scenario())


def written(rank: int, size: int) -> bytes:
    """Returns the addresses of a member: "<itself>><other>" for each other member."""
    return b"".join(b"%03d>%03d" % (rank, other) for other in range(size) if other != rank)


def needed(rank: int, size: int) -> bytes:
    return b"".join(b"%03d>%03d" % (other, rank) for other in range(size) if other != rank)


@pytest.mark.parametrize("size", [2, 3, 63, 64, 65, 130])
def test_each_member_is_given_the_address_that_each_other_member_has_for_it(size: int) -> None:
    found = by_reader([zlib.compress(written(rank, size)) for rank in range(size)])
    assert list(map(zlib.decompress, found)) == [needed(rank, size) for rank in range(size)]


def test_the_addresses_of_a_mesh_are_waited_for_and_given_together() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        readers = [asyncio.create_task(store.addresses_for(1, ("a", 3), rank)) for rank in range(3)]
        for rank in (2, 0):
            store.put(1, f"a/{rank}", written(rank, 3))
            store.put(1, f"b/{rank}", b"another mesh")
        await asyncio.sleep(0.01)
        assert not any(reader.done() for reader in readers)
        store.put(1, "a/1", written(1, 3))
        assert await asyncio.gather(*readers) == [needed(rank, 3) for rank in range(3)]
        for rank in range(3):
            store.delete(1, f"a/{rank}")
        again = [asyncio.create_task(store.addresses_for(1, ("a", 2), rank)) for rank in range(2)]
        store.put(1, "a/0", written(0, 2))
        store.put(1, "a/1", written(1, 2))
        assert await asyncio.gather(*again) == [needed(rank, 2) for rank in range(2)]

    run(scenario())


def test_closing_a_round_ends_the_wait_for_the_addresses_of_a_mesh() -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        store.put(1, "a/0", written(0, 2))
        reader = asyncio.create_task(store.addresses_for(1, ("a", 2), 0))
        await asyncio.sleep(0.01)
        store.close(1)
        assert await reader == EMPTY
        assert await store.addresses_for(1, ("a", 2), 0) == EMPTY

    run(scenario())


def test_a_round_that_is_closed_while_its_addresses_are_sorted_out_gives_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, closed = threading.Event(), threading.Event()

    def slow(packed: Sequence[bytes]) -> list[bytes]:
        begun.set()
        closed.wait(5)
        return by_reader(packed)

    monkeypatch.setattr(rendezvous, "by_reader", slow)

    async def scenario() -> None:
        store = RendezvousStore()
        for rank in range(2):
            store.put(1, f"a/{rank}", written(rank, 2))
        reader = asyncio.create_task(store.addresses_for(1, ("a", 2), 0))
        await asyncio.to_thread(begun.wait, 5)
        store.close(1)
        closed.set()
        assert await reader == EMPTY

    run(scenario())


def test_the_wait_for_the_addresses_of_a_mesh_gives_up_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "HOLD_S", 0.01)

    async def scenario() -> None:
        store = RendezvousStore()
        store.put(1, "a/0", written(0, 2))
        assert await store.addresses_for(1, ("a", 2), 0) is None
        store.put(1, "a/1", written(1, 2))
        assert await store.addresses_for(1, ("a", 2), 0) == needed(0, 2)

    run(scenario())


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (0, 1), (5, 2), (0, 99_999)])
def test_an_impossible_member_of_a_mesh_gets_no_addresses(rank: int, size: int) -> None:
    async def scenario() -> None:
        store = RendezvousStore()
        for other in range(2):
            store.put(1, f"a/{other}", written(other, 2))
        assert not await store.addresses_for(1, ("a", size), rank)

    run(scenario())
