"""Members of a round come to the root's tensors, and who holds them receives nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

np = pytest.importorskip("numpy")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.worker.transfer import exchange, frames, handshake
from hvd_elastic_keras.worker.transfer.arrival import Arrival
from hvd_elastic_keras.worker.transfer.exchange import Exchange
from hvd_elastic_keras.worker.transfer.fetcher import Source
from hvd_elastic_keras.worker.transfer.handshake import Part
from hvd_elastic_keras.worker.transfer.holder import Holder
from hvd_elastic_keras.worker.transfer.plan import (
    MOST_BEHIND_PER_HOLDER,
    MOST_SOURCES,
    Member,
    Plan,
)

LIMIT_S = 60.0
SHAPES = ((1000, 900), (), (3, 0), (500_000,))
HERE = ("127.0.0.1", 1)


class Meeting:
    """Collectives of members that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.said: list[Any] = [None] * size

    def all_say(self, rank: int, value: Any) -> list[Any]:
        self.barrier.wait()
        self.said[rank] = value
        self.barrier.wait()
        return list(self.said)


class Place:
    """A communicator of one of them."""

    gloo_timeout_s = LIMIT_S

    def __init__(self, meeting: Meeting, rank: int, address: str = "127.0.0.1") -> None:
        self.rank, self.address, self.reaches_all = rank, address, True
        self._meeting = meeting
        self.sockets = 0
        self.broadcasts = 0

    def keep(self, connection: object) -> None:
        self.sockets += 1

    def gather_bytes(self, data: bytes, name: str) -> list[bytes]:
        return self._meeting.all_say(self.rank, data)

    def any_true(self, flag: bool, name: str) -> bool:
        return any(self._meeting.all_say(self.rank, flag))

    def barrier(self, name: str) -> None:
        self._meeting.all_say(self.rank, None)

    def broadcast_tensors(self, tensors: Sequence[Any], name: str) -> list[Any]:
        self.broadcasts += 1
        return list(self._meeting.all_say(self.rank, tensors)[0])


def values(seed: float) -> list[Any]:
    return [tf.fill(shape, seed) for shape in SHAPES]


class Members:
    """Exchanges of all members of a round.

    Args:
      own: what each holds.
      level: who says that it holds what the root holds.
      addresses: where each is reached, if not here.
    """

    def __init__(
        self,
        own: Sequence[list[Any]],
        level: Sequence[bool],
        *,
        compare: bool = False,
        addresses: dict[int, str] | None = None,
    ) -> None:
        meeting = Meeting(len(own))
        addresses = addresses or {}
        self.places = [
            Place(meeting, rank, addresses.get(rank, "127.0.0.1")) for rank in range(len(own))
        ]
        self._own, self._level, self._compare = own, level, compare
        self.may_be_late: Sequence[bool] = [False] * len(own)

    def found(self) -> list[Any]:
        """What each has in the end: tensors, or an error."""
        return [tensors_of(arrival) for arrival in self.arrivals()]

    def arrivals(self) -> list[Any]:
        """What each gets: an arrival, or an error."""
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in self._own[0]]
        key = handshake.new_key()
        result: list[Any] = [None] * len(self.places)

        def take_part(rank: int) -> None:
            place: Any = self.places[rank]
            try:
                result[rank] = Exchange(place, rank == 0, specs, key, "sync").arrival(
                    self._own[rank],
                    has_root_state=self._level[rank],
                    compare=self._compare,
                    may_be_late=self.may_be_late[rank],
                )
            except CollectiveFailedError as error:
                result[rank] = error
                place._meeting.barrier.abort()
            except threading.BrokenBarrierError as error:
                result[rank] = error

        threads = [
            threading.Thread(target=take_part, args=(rank,), daemon=True)
            for rank in range(len(self.places))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        return result

    @property
    def broadcasts(self) -> int:
        return sum(place.broadcasts for place in self.places)


def tensors_of(arrival: Any) -> Any:
    """Those of an arrival; an error as it is."""
    return arrival.tensors() if isinstance(arrival, Arrival) else arrival


def firsts(found: Sequence[Sequence[Any]]) -> list[float]:
    """A number of the first tensor and one of the last, of each member: they are the same."""
    for tensors in found:
        assert [tuple(t.shape) for t in tensors] == list(SHAPES)
        assert (
            len({float(t.numpy().flat[k]) for t in tensors if t.shape != (3, 0) for k in (0, -1)})
            == 1
        )
    return [float(tensors[1]) for tensors in found]


def test_who_lacks_the_state_gets_it_and_who_holds_it_keeps_its_own_tensors() -> None:
    own = [values(1.0), values(1.0), values(0.0), values(0.0)]
    members = Members(own, [True, True, False, False])
    found = members.found()
    assert firsts(found) == [1.0] * 4
    assert all(mine is its for mine, its in zip(own[1], found[1], strict=True))
    assert [place.sockets for place in members.places[2:]] == [2, 2]  # to each holder
    assert members.broadcasts == 0


def test_with_all_level_no_tensor_travels() -> None:
    members = Members([values(1.0)] * 3, [True] * 3)
    assert firsts(members.found()) == [1.0] * 3
    # A listener and the member's connection for each that is served.
    assert [place.sockets for place in members.places] == [1] * 3
    assert members.broadcasts == 0


def test_who_only_seems_level_gets_the_roots_state() -> None:
    own = [values(1.0), values(1.0), values(2.0), values(0.0)]
    members = Members(own, [True, True, True, False], compare=True)
    found = members.found()
    assert firsts(found) == [1.0] * 4
    assert found[1][0] is own[1][0]
    assert found[2][0] is not own[2][0]


def test_a_level_member_with_other_variables_gives_nothing() -> None:
    own = [values(1.0), values(1.0)[:2], values(0.0)]
    members = Members(own, [True, True, False])
    found = members.found()
    assert firsts([found[0], found[2]]) == [1.0] * 2
    assert found[1] == own[1]
    assert members.places[1].sockets == 0


def test_a_small_state_is_broadcast() -> None:
    own = [[tf.fill([100], 1.0)], [tf.fill([100], 0.0)]]
    members = Members(own, [True, False])
    assert [float(found[0][0]) for found in members.found()] == [1.0, 1.0]
    assert members.broadcasts == 2


@pytest.mark.parametrize("address", ["", "192.0.2.1"])
def test_without_an_address_of_its_own_the_root_broadcasts(address: str) -> None:
    members = Members([values(1.0), values(0.0)], [True, False], addresses={0: address})
    assert firsts(members.found()) == [1.0, 1.0]
    assert members.broadcasts == 2


def test_a_member_that_cannot_connect_makes_all_broadcast_and_no_holder_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    class Elsewhere(Holder):
        def __enter__(self) -> Any:
            super().__enter__()
            self.__exit__(None, None, None)  # nobody answers there
            return self

    monkeypatch.setattr(exchange, "Holder", Elsewhere)
    members = Members([values(1.0), values(0.0), values(0.0)], [True, False, False])
    assert firsts(members.found()) == [1.0] * 3
    assert members.broadcasts == 3
    assert "the state goes through the collective, to everybody: 127.0.0.1:" in caplog.text
    sockets = members.places[0].sockets
    assert firsts(members.found()) == [1.0] * 3
    assert (members.places[0].sockets, members.broadcasts) == (sockets, 6)


def test_a_transfer_that_breaks_fails_as_a_collective_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send: Callable[..., None] = frames.send

    def breaks(connection: Any, chunk: frames.Chunk) -> None:
        send(connection, chunk)
        connection.close()

    monkeypatch.setattr(frames, "send", breaks)
    own = [values(1.0), values(0.0)]
    root, joiner = Members(own, [True, False]).found()
    assert isinstance(root, threading.BrokenBarrierError)
    assert isinstance(joiner, CollectiveFailedError)
    assert "did not come whole" in str(joiner)


# --- plans -----------------------------------------------------------------------------------


def holders(count: int) -> list[Member]:
    return [Member(True, address=("10.0.0.1", 1 + k)) for k in range(count)]


def test_holders_have_about_as_much_to_give() -> None:
    members = [*holders(3), *[Member(False)] * 3]
    plan = Plan(members, 3000)
    assert plan.behind == [3, 4, 5]
    given = dict.fromkeys([1, 2, 3], 0)
    for rank in plan.behind:
        sources = plan.sources(rank)
        bounds = [(s.part.start, s.part.end) for s in sources]
        assert bounds == [(0, 1000), (1000, 2000), (2000, 3000)]
        for source in sources:
            given[source.address[1]] += source.part.end - source.part.start
    assert given == {1: 3000, 2: 3000, 3: 3000}


def test_a_member_asks_few_of_many_holders() -> None:
    plan = Plan([*holders(10), Member(False), Member(False)], 999)
    first, second = plan.sources(10), plan.sources(11)
    assert len(first) == len(second) == MOST_SOURCES
    assert not {s.address for s in first} & {s.address for s in second}
    assert first[-1].part.end == 999


def test_a_single_holder_gives_all() -> None:
    plan = Plan([Member(True, address=HERE), Member(False)], 10)
    assert plan.sources(1) == [Source(HERE, Part(0, 10))]


def test_many_members_and_few_holders_make_a_broadcast() -> None:
    few = [Member(False)] * MOST_BEHIND_PER_HOLDER
    many = [*few, Member(False)]
    assert Plan([*holders(1), *few], 10).is_direct
    assert not Plan([*holders(1), *many], 10).is_direct
    assert Plan([*holders(2), *many], 10).is_direct
    assert not Plan([Member(True), *few], 10).is_direct


# --- a state that may come late --------------------------------------------------------------


def late_arrivals(may_be_late: Sequence[bool]) -> list[Any]:
    """What members get of whom the first two hold the state; of the others, some need not wait."""
    own = [values(1.0), values(1.0), *[values(0.0)] * len(may_be_late)]
    members = Members(own, [True, True, *[False] * len(may_be_late)])
    members.may_be_late = [False, False, *may_be_late]
    return members.arrivals()


def test_if_all_who_lack_the_state_can_do_without_it_for_a_while_nobody_waits() -> None:
    arrivals = late_arrivals([True, True])
    assert [a.late_ranks for a in arrivals] == [(2, 3)] * 4
    assert firsts([a.tensors() for a in arrivals[2:]]) == [1.0] * 2
    for arrival in arrivals:
        arrival.close()


def test_if_one_cannot_do_without_the_state_all_wait() -> None:
    arrivals = late_arrivals([True, False])
    assert [a.late_ranks for a in arrivals] == [()] * 4
    assert firsts([a.tensors() for a in arrivals]) == [1.0] * 4


def test_who_has_given_all_of_its_state_keeps_no_copy_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holders: list[Holder] = []
    enter = Holder.__enter__

    def noted(self: Holder) -> Holder:
        holders.append(self)
        return enter(self)

    monkeypatch.setattr(Holder, "__enter__", noted)
    arrivals = late_arrivals([True, True])
    for arrival in arrivals[2:]:
        arrival.tensors()
    deadline = time.monotonic() + LIMIT_S
    while any(len(h._memory) for h in holders) and time.monotonic() < deadline:
        time.sleep(0.001)  # its thread has sent the last byte a moment ago
    assert [len(h._memory) for h in holders] == [0, 0]
    for arrival in arrivals:
        arrival.close()


def test_a_state_that_does_not_come_whole_fails_as_a_collective_does_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(connection: Any, chunk: frames.Chunk) -> None:
        connection.close()

    monkeypatch.setattr(frames, "send", breaks)
    arrivals = late_arrivals([True])
    with pytest.raises(CollectiveFailedError, match="did not come whole"):
        arrivals[2].tensors()
    for arrival in arrivals:
        arrival.close()


def test_a_joiner_that_gives_up_does_not_wait_for_a_holder_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(frames, "send", lambda *_: over.wait(LIMIT_S))
    arrivals = late_arrivals([True])
    arrivals[2].close()
    assert not over.is_set()
    over.set()
    for arrival in arrivals[:2]:
        arrival.close()
