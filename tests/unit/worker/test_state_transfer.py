"""Bytes of tensors go from holders to members who lack them; nobody else gets or spoils any."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.tensor_bytes import Blanks, Bytes, readable
from hvd_elastic_keras.worker.transfer import frames, handshake
from hvd_elastic_keras.worker.transfer.fetcher import Fetcher, Source
from hvd_elastic_keras.worker.transfer.handshake import Part
from hvd_elastic_keras.worker.transfer.holder import MOST_STRANGERS, Address, Holder, exactly

HOST = "127.0.0.1"
KEY = handshake.new_key()
SIZE = 3 * frames.CHUNK_BYTES + 17
LIMIT_S = 60.0
HANDSHAKE_BYTES = handshake.NONCE_BYTES + handshake.ANSWER_BYTES
"""What a holder sends before the tensors."""
DTYPES = (
    *(tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64),
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128),
)
SHAPES = ((), (0,), (3,), (2, 0, 3), (5, 7))


def unwatched(_: socket.socket) -> None:
    """No round is going to end."""


def random_bytes(size: int = SIZE) -> Bytes:
    found: Bytes = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return found


def holder_of(memory: Sequence[Bytes], key: str = KEY) -> Holder:
    return Holder(HOST, key, memory, silent_s=LIMIT_S, keep=unwatched)


def fetcher(silent_s: float = LIMIT_S, key: str = KEY) -> Fetcher:
    return Fetcher(key, silent_s=silent_s, keep=unwatched)


def fetched(sources: Sequence[Source], sizes: Sequence[int], silent_s: float = LIMIT_S) -> Bytes:
    memory = [np.zeros(size, np.uint8) for size in sizes]
    with fetcher(silent_s) as fetching:
        fetching.connect(sources)
        fetching.fetch(memory)
    found: Bytes = np.concatenate(memory)
    return found


class Wire:
    """Between a member and a holder: hands on what comes, up to a byte, or with one changed.

    Args:
      holder: where it leads to.
      flip_at: byte of the holder's that is changed.
      end_at: byte of the holder's from which on nothing comes any more.
      hangs: whether the connection stays open then.
    """

    def __init__(
        self, holder: Address, flip_at: int = -1, end_at: int = 2**62, hangs: bool = False
    ) -> None:
        self._flip_at, self._end_at, self._hangs = flip_at, end_at, hangs
        self._listener = socket.create_server((HOST, 0))
        self.address: Address = self._listener.getsockname()
        self._to_holder = socket.create_connection(holder, LIMIT_S)
        self._over = threading.Event()

    def __enter__(self) -> Wire:
        self._listener.settimeout(LIMIT_S)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LIMIT_S)
        self._listener.close()
        self._to_holder.close()

    def _work(self) -> None:
        with self._listener.accept()[0] as member, contextlib.suppress(OSError):
            member.settimeout(LIMIT_S)
            member.sendall(exactly(self._to_holder, handshake.NONCE_BYTES))
            self._to_holder.sendall(exactly(member, handshake.REQUEST_BYTES))
            at = handshake.NONCE_BYTES
            while at < self._end_at and (data := self._to_holder.recv(2**16)):
                changed = bytearray(data[: self._end_at - at])
                if 0 <= self._flip_at - at < len(changed):
                    changed[self._flip_at - at] ^= 1
                member.sendall(changed)
                at += len(changed)
            if self._hangs:
                self._over.wait(LIMIT_S)


def test_tensors_of_all_types_and_shapes_arrive_as_they_were() -> None:
    draw = np.random.default_rng(1)
    tensors = [
        tf.cast(tf.constant(draw.integers(0, 2, shape) * 100.5), dtype)
        for dtype in DTYPES
        for shape in SHAPES
    ]
    memory = readable(tensors)
    blanks = Blanks([tf.TensorSpec(t.shape, t.dtype) for t in tensors])
    with holder_of(memory) as holder, fetcher() as fetching:
        fetching.connect([Source(holder.address, Part(0, sum(map(len, memory))))])
        fetching.fetch(blanks.memory)
    for tensor, other in zip(tensors, blanks.tensors(), strict=True):
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(tensor.numpy(), other.numpy())


def test_neither_holder_nor_member_copies_a_tensor() -> None:
    held = tf.Variable(tf.random.uniform([1000]))
    assert readable([tf.identity(held)])[0].ctypes.data == np.asarray(held.value()).ctypes.data
    blanks = Blanks([tf.TensorSpec([1000], tf.float32)])
    place = blanks.memory[0].ctypes.data
    blanks.memory[0][:] = readable([tf.identity(held)])[0]
    other = tf.Variable(tf.zeros([1000]))
    other.assign(blanks.tensors()[0])
    assert np.asarray(other.value()).ctypes.data == place
    np.testing.assert_array_equal(other.numpy(), held.numpy())


def test_chunks_are_what_lies_between_two_bytes() -> None:
    sizes = [0, 5, frames.CHUNK_BYTES, 1, *[3] * 1200, 2 * frames.CHUNK_BYTES + 1]
    memory = [random_bytes(size) for size in sizes]
    whole = np.concatenate(memory)
    for start, end in ((0, len(whole)), (3, 7), (6, len(whole) - 4), (9, 9)):
        found = list(frames.chunks(memory, start, end))
        pieces = [piece for chunk in found for piece in chunk]
        np.testing.assert_array_equal(np.concatenate([*pieces, whole[:0]]), whole[start:end])
        assert all(sum(map(len, chunk)) <= frames.CHUNK_BYTES for chunk in found)
        assert all(len(chunk) <= frames.MOST_PIECES for chunk in found)


def test_each_of_several_holders_gives_a_part() -> None:
    sizes = [SIZE, 100, SIZE]
    with contextlib.ExitStack() as stack:
        holders = [
            stack.enter_context(holder_of([np.full(s, k, np.uint8) for s in sizes]))
            for k in range(3)
        ]
        bounds = [0, 1000, SIZE + 7, sum(sizes)]
        sources = [
            Source(holder.address, Part(*bounds[k : k + 2])) for k, holder in enumerate(holders)
        ]
        found = fetched(sources, sizes)
    np.testing.assert_array_equal(found, np.repeat([0, 1, 2], np.diff(bounds)))


def test_several_members_fetch_from_one_holder_at_the_same_time() -> None:
    data = random_bytes()
    with holder_of([data]) as holder:
        source = Source(holder.address, Part(0, SIZE))
        found: list[Bytes] = []
        threads = [
            threading.Thread(target=lambda: found.append(fetched([source], [SIZE])), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert len(found) == 4
    for each in found:
        np.testing.assert_array_equal(each, data)


def test_who_has_another_key_gets_nothing() -> None:
    with holder_of([random_bytes()]) as holder:
        with socket.create_connection(holder.address, LIMIT_S) as stranger:
            challenge = exactly(stranger, handshake.NONCE_BYTES)
            stranger.sendall(handshake.request(handshake.new_key(), challenge, Part(0, SIZE)))
            assert stranger.recv(1) == b""
        with fetcher(key=handshake.new_key()) as other, pytest.raises(ConnectionError):
            other.connect([Source(holder.address, Part(0, SIZE))])


def test_a_request_cannot_be_used_again() -> None:
    first, second = handshake.nonce(), handshake.nonce()
    message = handshake.request(KEY, first, Part(3, 4))
    assert handshake.requested(KEY, first, message) == Part(3, 4)
    assert handshake.requested(KEY, second, message) is None
    changed = handshake.ASKED.pack(0, 99) + message[handshake.ASKED.size :]
    assert handshake.requested(KEY, first, changed) is None


def test_nothing_is_taken_from_who_has_another_key() -> None:
    with socket.create_server((HOST, 0)) as listener:

        def pretend() -> None:
            connection = listener.accept()[0]
            with connection, contextlib.suppress(OSError):
                connection.sendall(handshake.nonce())
                message = exactly(connection, handshake.REQUEST_BYTES)
                connection.sendall(handshake.answer(handshake.new_key(), message))

        threading.Thread(target=pretend, daemon=True).start()
        with fetcher() as fetching, pytest.raises(ConnectionError, match="somebody else"):
            fetching.connect([Source(listener.getsockname(), Part(0, SIZE))])


def test_connections_on_which_nothing_comes_hold_nobody_up() -> None:
    data = random_bytes()
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(holder_of([data]))
        idle = [
            stack.enter_context(socket.create_connection(holder.address, LIMIT_S))
            for _ in range(MOST_STRANGERS + 10)
        ]
        found = fetched([Source(holder.address, Part(0, SIZE))], [SIZE])
        np.testing.assert_array_equal(found, data)
        said = b"".join(iter(lambda: idle[0].recv(2**10), b""))  # until it is closed
    assert len(said) <= handshake.NONCE_BYTES


@pytest.mark.parametrize("at", [0, frames.CHUNK_BYTES + 2, SIZE + 2 * frames.CHECKSUM.size])
def test_a_byte_that_is_changed_on_the_way_is_noticed(at: int) -> None:
    with (
        holder_of([random_bytes()]) as holder,
        Wire(holder.address, flip_at=HANDSHAKE_BYTES + at) as wire,
        pytest.raises(frames.DamagedError, match="damaged on the way"),
    ):
        fetched([Source(wire.address, Part(0, SIZE))], [SIZE])


def test_an_undamaged_wire_changes_nothing() -> None:
    data = random_bytes()
    with holder_of([data]) as holder, Wire(holder.address) as wire:
        found = fetched([Source(wire.address, Part(0, SIZE))], [SIZE])
    np.testing.assert_array_equal(found, data)


def test_a_holder_that_ends_in_mid_transfer_ends_the_whole_fetch() -> None:
    data = random_bytes()
    end_at = HANDSHAKE_BYTES + frames.CHUNK_BYTES + 5
    with (
        holder_of([data]) as holder,
        holder_of([data]) as other,
        Wire(holder.address, end_at=end_at) as wire,
        Wire(other.address, end_at=end_at, hangs=True) as hanging,
    ):
        # Without the end of the first, the second would hold it up until it times out.
        sources = [Source(wire.address, Part(0, SIZE)), Source(hanging.address, Part(0, SIZE))]
        with pytest.raises(ConnectionError):
            fetched(sources, [SIZE])


def test_a_holder_that_says_nothing_any_more_is_given_up() -> None:
    with (
        holder_of([random_bytes()]) as holder,
        Wire(holder.address, end_at=HANDSHAKE_BYTES + 1000, hangs=True) as wire,
        pytest.raises(TimeoutError),
    ):
        fetched([Source(wire.address, Part(0, SIZE))], [SIZE], silent_s=0.1)


@pytest.fixture
def communicator() -> Iterator[Communicator]:
    made = Communicator("lo", "localhost", 30, master=None)
    made._round = 1
    yield made
    made._round = 0


def test_the_end_of_a_round_ends_a_fetch_that_waits(communicator: Communicator) -> None:
    with (
        holder_of([random_bytes()]) as holder,
        Wire(holder.address, end_at=HANDSHAKE_BYTES + 1000, hangs=True) as wire,
        Fetcher(KEY, silent_s=LIMIT_S, keep=communicator.keep) as fetching,
    ):
        fetching.connect([Source(wire.address, Part(0, SIZE))])
        ending = threading.Timer(0.0, communicator.abort, args=(1,))
        ending.start()
        with pytest.raises(ConnectionError):
            fetching.fetch([np.zeros(SIZE, np.uint8)])
        ending.join(LIMIT_S)


def test_no_socket_is_opened_in_a_round_that_has_ended(communicator: Communicator) -> None:
    communicator.abort(1)
    with holder_of([random_bytes()]) as holder:
        late = Fetcher(KEY, silent_s=LIMIT_S, keep=communicator.keep)
        with late, pytest.raises(ConnectionError, match="the round was closed"):
            late.connect([Source(holder.address, Part(0, SIZE))])


def test_the_end_of_a_round_ends_a_holder(communicator: Communicator) -> None:
    with Holder(HOST, KEY, [random_bytes()], silent_s=LIMIT_S, keep=communicator.keep) as holder:
        communicator.abort(1)
        with fetcher() as fetching, pytest.raises(OSError, match=str(holder.address[1])):
            fetching.connect([Source(holder.address, Part(0, SIZE))])


@pytest.mark.skipif(
    "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="this Linux gives no huge pages",
)
def test_huge_pages_are_asked_for_where_a_large_tensor_lies() -> None:
    size = 64 * 2**20
    blanks = Blanks([tf.TensorSpec([size], tf.uint8)])
    address = blanks.memory[0].ctypes.data
    assert "hg" in _flags_of_mapping(address + size // 2), "Linux gives them if it has any"


def _flags_of_mapping(address: int) -> list[str]:
    """What Linux has been asked of the mapping of this process that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []
