"""The patched Horovod: a peer that dies at any moment causes the others only an error.

The tests use real processes. Their rendezvous store can be told at which stage of `hvd.init()` a
peer dies. In these tests, a stock Horovod 0.28.1 aborts the survivors (SIGABRT), or they wait for a
whole Gloo timeout; BUILD.md has the numbers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import zlib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvd_elastic_keras.master.http.rendezvous import by_reader
from tests.harness import horovod_calls, warm_python

pytestmark = pytest.mark.timeout(180)

REPLY_TIMEOUT_S = 90.0
GLOO_TIMEOUT_S = 3


class Worker:
    """A process with Horovod that executes calls, one at a time; see `horovod_calls.py`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._connection, other = warm_python.CONTEXT.Pipe()
        self.process = warm_python.process_of(horovod_calls.serve, log, other)
        self.process.start()
        other.close()

    def ask(self, name: str, *arguments: object) -> None:
        self._connection.send((name, arguments))

    def reply(self, timeout_s: float = REPLY_TIMEOUT_S) -> dict[str, Any]:
        assert self._connection.poll(timeout_s), f"no reply: {self.log.read_text()[-2000:]}"
        try:
            return self._connection.recv()
        except EOFError:
            self.process.join(10)
            status = self.process.exitcode
            pytest.fail(f"worker ended with status {status}: {self.log.read_text()[-2000:]}")

    def call(self, name: str, *arguments: object) -> dict[str, Any]:
        self.ask(name, *arguments)
        return self.reply()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    def close(self) -> int | None:
        """Ends the process by closing its connection; returns its exit status."""
        self._connection.close()
        self.process.join(30)
        return self.process.exitcode

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self.kill()


class Store:
    """A rendezvous store that holds a `GET` until the key exists.

    With `trap = (round, scope)`, it holds back the addresses of the ranks in `trapped_ranks`, in
    scopes that begin with `scope`. It sets `trapped` as soon as it has these addresses. After
    `let_go` there is no trap any more. After `declare_dead` the answer is empty, which Gloo refuses
    at once. If `tells_death` is false, the answer is the address at which no process listens any
    more. If `knows_meshes` is false, it gives each address by itself, as Horovod's own store does.
    """

    def __init__(self) -> None:
        self.trap: tuple[str, str] | None = None
        self.trapped_ranks = {"1"}
        self.tells_death = True
        self.knows_meshes = True
        self.trapped = threading.Event()
        self._keys: dict[str, bytes] = {}
        self._dead: set[str] = set()
        self._is_let_go = False
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def environ(self, round_name: str, rank: int, size: int = 2, hosts: int = 1) -> dict[str, str]:
        """Returns the variables for one rank of a round on one host, or on several equal hosts."""
        host, port = self._server.server_address[:2]
        local_size = size // hosts
        return single_process_environ() | {
            "HOROVOD_HOSTNAME": f"host{rank // local_size}",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_LOCAL_RANK": str(rank % local_size),
            "HOROVOD_CROSS_RANK": str(rank // local_size),
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_SIZE": str(local_size),
            "HOROVOD_CROSS_SIZE": str(hosts),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{host!s}:{port}/{round_name}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
        }

    def declare_dead(self, round_name: str) -> None:
        """From now on, answers all questions about unknown keys of this round."""
        with self._changed:
            self._dead.add(round_name)
            self._changed.notify_all()

    def let_go(self) -> None:
        """From now on, hands out the addresses held back: all peers live."""
        with self._changed:
            self._is_let_go = True
            self._changed.notify_all()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    def _answer(self, path: str) -> bytes | None:
        mesh, _, member = path.partition("/addresses_for.")
        if not member:
            return self._get(path)
        if not self.knows_meshes:
            return None
        rank, size = map(int, member.split("."))
        values = [self._get(f"{mesh}/{other}") for other in range(size)]
        if not all(values):
            return b""
        return zlib.decompress(by_reader(list(map(zlib.compress, values)))[rank])

    def _get(self, path: str) -> bytes:
        round_name, scope, key = path.split("/")[1:]
        round_name = round_name.split(":")[0]
        with self._changed:
            if (
                key in self.trapped_ranks
                and self.trap
                and round_name == self.trap[0]
                and scope.startswith(self.trap[1])
            ):
                here = path.removesuffix(key)
                trapped = {here + rank for rank in self.trapped_ranks}
                self._changed.wait_for(lambda: trapped <= self._keys.keys(), REPLY_TIMEOUT_S)
                self.trapped.set()
                self._changed.wait_for(
                    lambda: self._is_let_go or round_name in self._dead, REPLY_TIMEOUT_S
                )
                return b"" if self.tells_death and not self._is_let_go else self._keys[path]
            self._changed.wait_for(
                lambda: path in self._keys or round_name in self._dead, REPLY_TIMEOUT_S
            )
            return self._keys.get(path, b"")

    def _put(self, path: str, value: bytes) -> None:
        with self._changed:
            self._keys[path] = value
            self._changed.notify_all()

    def _handler(store) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def answer(self, body: bytes | None = b"") -> None:
                self.send_response(404 if body is None else 200)
                body = body or b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer(store._answer(self.path))

            def do_PUT(self) -> None:
                store._put(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                self.answer()

            def do_DELETE(self) -> None:
                self.answer()

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle(self) -> None:
                # The process that asks may have been killed.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    super().handle()

        return Handler


def single_process_environ() -> dict[str, str]:
    """Returns the variables with which Horovod initialises alone."""
    sizes = {f"HOROVOD_{kind}SIZE": "1" for kind in ("", "LOCAL_", "CROSS_")}
    ranks = {f"HOROVOD_{kind}RANK": "0" for kind in ("", "LOCAL_", "CROSS_")}
    return {
        **sizes,
        **ranks,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_S),
        "HOROVOD_HOSTNAME": "localhost",
    }


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.close()


def assert_init_failed(reply: Mapping[str, Any]) -> None:
    assert reply["ok"] is False
    assert "Horovod initialization failed" in reply["error"]


def assert_works_alone(worker: Worker) -> None:
    assert worker.call("shutdown") == {"initialized": False}
    assert worker.call("init", single_process_environ()) == {"ok": True, "rank": 0, "size": 1}
    assert worker.call("allreduce", 3.0) == {"sum": 3.0}
    assert worker.call("shutdown") == {"initialized": False}


def test_installed_horovod_says_that_it_is_patched() -> None:
    assert metadata.version("horovod").startswith("0.28.1+hvdelastic")


@pytest.mark.parametrize("knows_meshes", [True, False])
def test_two_processes_train_a_keras_model_to_equal_weights(
    store: Store, tmp_path: Path, knows_meshes: bool
) -> None:
    store.knows_meshes = knows_meshes
    with (
        Worker(tmp_path / "0.log") as first,
        Worker(tmp_path / "1.log") as second,
    ):
        for rank, worker in enumerate((first, second)):
            worker.ask("init", store.environ("r", rank))
        assert first.reply()["size"] == second.reply()["size"] == 2
        for worker in (first, second):
            worker.ask("train", 40)
        result, other = first.reply(), second.reply()
        assert result["weights"] == other["weights"]
        assert result["last"] < 0.5 * result["first"]
        for worker in (first, second):
            worker.ask("shutdown")
        assert first.reply() == second.reply() == {"initialized": False}
        assert first.close() == second.close() == 0


def test_a_group_of_tensors_does_not_wait_for_the_cycle(tmp_path: Path) -> None:
    """The cycle exists to collect more tensors."""
    an_hour = {"HOROVOD_CYCLE_TIME": str(60 * 60 * 1000)}
    with Worker(tmp_path / "0.log") as worker:
        assert worker.call("init", single_process_environ() | an_hour)["ok"]
        for _ in range(2):  # Horovod knows the tensors the second time
            assert worker.call("allreduce_group", 3) == {"sums": [1.0, 1.0, 1.0]}


def test_every_tensor_of_a_group_is_answered_whenever_horovod_is_shut_down(tmp_path: Path) -> None:
    """A group that came into the queue after its last look was never answered."""
    moments = 40
    with Worker(tmp_path / "0.log") as worker:
        found = worker.call("shutdowns_within_a_group", 5000, moments, single_process_environ())
        assert found == {"answered": moments}


def test_sums_take_the_place_of_the_tensors_of_a_group(tmp_path: Path) -> None:
    with Worker(tmp_path / "0.log") as worker:
        assert worker.call("init", single_process_environ())["ok"]
        assert worker.call("memory_of_sums", 3) == {"in_place": [True] * 3}


def test_the_size_of_the_buffer_and_the_cycle_may_be_given_for_every_round(tmp_path: Path) -> None:
    """With both variables, the second `hvd.init()` of a process used to end it (SIGSEGV)."""
    given = {"HOROVOD_FUSION_THRESHOLD": str(2**24), "HOROVOD_CYCLE_TIME": "1"}
    with Worker(tmp_path / "0.log") as worker:
        for _ in range(3):
            assert worker.call("init", single_process_environ() | given)["ok"]
            assert worker.call("allreduce_group", 2) == {"sums": [1.0, 1.0]}
            worker.call("shutdown")


def test_the_event_thread_does_not_keep_the_processor_from_the_thread_it_waits_for(
    store: Store, tmp_path: Path
) -> None:
    """With one processor per worker, the event thread used to take six times as much of it."""
    allowed = sorted(os.sched_getaffinity(0))
    with Worker(tmp_path / "0.log") as first, Worker(tmp_path / "1.log") as second:
        for rank, worker in enumerate((first, second)):
            processor = allowed[rank % len(allowed)]
            worker.ask("processor_times_of_allreduces", 300, processor, store.environ("r", rank))
        for worker in (first, second):
            cycles, *events = worker.reply()["nanoseconds"]
            assert sum(events) < 3 * cycles


@pytest.mark.parametrize("size", [5, 6, 8])
def test_few_numbers_of_many_workers_are_summed(store: Store, tmp_path: Path, size: int) -> None:
    """More than four workers do not sum few bytes in a ring."""
    lengths = [1, 2, 5, 7, 1000, 16384, 16385]
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(tmp_path / f"{rank}.log")) for rank in range(size)]
        for rank, worker in enumerate(workers):
            worker.ask("init", store.environ("r", rank, size))
        assert {worker.reply()["size"] for worker in workers} == {size}
        for worker in workers:
            worker.ask("sums_of_ranks", lengths)
        for worker in workers:
            assert worker.reply() == {"right": [True] * 2 * len(lengths)}


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_workers_and_sets_of_them_find_their_places_on_any_hosts(
    store: Store, tmp_path: Path, hosts: int
) -> None:
    """Horovod has no mesh of its own for the workers of a host if these are all workers."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(tmp_path / f"{rank}.log")) for rank in range(4)]
        for number in range(2):
            for rank, worker in enumerate(workers):
                worker.ask("init", store.environ(f"round{number}", rank, 4, hosts), [[0, 2]])
            assert {worker.reply()["size"] for worker in workers} == {4}
            for rank, worker in enumerate(workers):
                local_rank, host = rank % (4 // hosts), rank // (4 // hosts)
                found = worker.call("places")
                assert found == {"local": [local_rank, 4 // hosts], "cross": [host, hosts]}
            for worker in workers:
                worker.ask("sums_of_sets")
            sums = [worker.reply()["sums"] for worker in workers]
            assert sums == [[6.0, 2.0], [6.0, None]] * 2
            for worker in workers:
                worker.ask("shutdown")
            assert [worker.reply() for worker in workers] == [{"initialized": False}] * 4


@pytest.mark.slow(but=("4-2000000-1", "6-100-1"))
@pytest.mark.parametrize("victim_rank", [0, 1, 2, 3])
@pytest.mark.parametrize(("size", "length"), [(4, 2_000_000), (6, 100)])
def test_all_survivors_of_a_kill_during_allreduce_get_an_error_at_once(
    store: Store, tmp_path: Path, size: int, length: int, victim_rank: int
) -> None:
    """This includes survivors that did not talk to the dead rank. None of them is aborted."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(tmp_path / f"{rank}.log")) for rank in range(size)]
        for rank, worker in enumerate(workers):
            # Longer than a reply is waited for: an error does not come from this timeout.
            environ = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}
            worker.ask("init", store.environ("r", rank, size) | environ)
        assert {worker.reply()["size"] for worker in workers} == {size}
        for worker in workers:
            worker.ask("allreduce_until_error", length)
        for worker in workers:
            assert worker.reply()["first_step"]
        victim = workers.pop(victim_rank)
        victim.kill()
        for worker in workers:
            assert worker.reply()["error"]
        for worker in workers:
            assert_works_alone(worker)
            assert worker.close() == 0


def test_init_fails_and_can_be_repeated_when_a_peer_never_comes(
    store: Store, tmp_path: Path
) -> None:
    with Worker(tmp_path / "survivor.log") as survivor:
        for attempt in range(5):
            store.declare_dead(f"attempt{attempt}")
            assert_init_failed(survivor.call("init", store.environ(f"attempt{attempt}", rank=0)))
            assert survivor.call("shutdown") == {"initialized": False}
        assert_works_alone(survivor)
        assert survivor.close() == 0


def test_a_second_init_without_shutdown_fails_again_and_harms_nothing(
    store: Store, tmp_path: Path
) -> None:
    with Worker(tmp_path / "survivor.log") as survivor:
        store.declare_dead("r")
        assert_init_failed(survivor.call("init", store.environ("r", rank=0)))
        assert_init_failed(survivor.call("init", single_process_environ()))
        assert_works_alone(survivor)
        assert survivor.close() == 0


def test_process_ends_cleanly_after_a_failed_init_without_shutdown(
    store: Store, tmp_path: Path
) -> None:
    with Worker(tmp_path / "survivor.log") as survivor:
        store.declare_dead("r")
        assert_init_failed(survivor.call("init", store.environ("r", rank=0)))
        assert survivor.close() == 0


def test_strangers_at_the_listening_ports_are_turned_away(store: Store, tmp_path: Path) -> None:
    """Stock Gloo takes the first connection for the peer's, whatever it sends."""
    store.trap, store.trapped_ranks = ("r", "global"), {"0", "1"}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(tmp_path / f"{rank}.log")) for rank in range(2)]
        for rank, worker in enumerate(workers):
            worker.ask("init", store.environ("r", rank))
        assert store.trapped.wait(REPLY_TIMEOUT_S), "nobody came to that stage"
        ports = {port for worker in workers for port in listening_ports(worker.process.pid or 0)}
        assert len(ports) >= 2, "each listens for the other"
        for port in ports:
            for garbage in (b"", b"x", bytes(8), os.urandom(1000)):
                stranger = socket.create_connection(("127.0.0.1", port))
                stack.enter_context(stranger).sendall(garbage)
        store.let_go()
        assert [worker.reply().get("size") for worker in workers] == [2, 2]
        for worker in workers:
            worker.ask("allreduce", 1.5)
        assert [worker.reply() for worker in workers] == [{"sum": 3.0}] * 2
        for worker in workers:
            worker.ask("shutdown")
        assert [worker.reply() for worker in workers] == [{"initialized": False}] * 2


def listening_ports(pid: int) -> set[int]:
    """Returns the ports at which a process listens."""
    found = psutil.Process(pid).net_connections("tcp4")
    return {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}


@pytest.mark.slow(but=("global-1-told", "local_host1-2-left_to_gloo"))
@pytest.mark.parametrize("tells_death", [True, False], ids=["told", "left_to_gloo"])
@pytest.mark.parametrize(("scope", "hosts"), [("global", 1), ("local_host1", 2), ("cross_1", 2)])
def test_survivors_of_a_peer_killed_during_init_work_alone_and_with_a_new_peer(
    store: Store, tmp_path: Path, scope: str, hosts: int, tells_death: bool
) -> None:
    size = 2 * hosts
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(tmp_path / f"{rank}.log")) for rank in range(size)]
        store.trap = ("first", scope)
        store.tells_death = tells_death
        for rank, worker in enumerate(workers):
            worker.ask("init", store.environ("first", rank, size, hosts))
        assert store.trapped.wait(REPLY_TIMEOUT_S), "no survivor reached that stage"
        victim = workers.pop()  # number 1 in each of these meshes
        victim.kill()
        assert victim.process.exitcode == -signal.SIGKILL
        store.declare_dead("first")
        for worker in workers:
            assert_init_failed(worker.reply())
        for worker in workers:
            assert_works_alone(worker)

        workers.append(stack.enter_context(Worker(tmp_path / "replacement.log")))
        for rank, worker in enumerate(workers):
            worker.ask("init", store.environ("second", rank, size, hosts))
        assert [worker.reply() for worker in workers] == [
            {"ok": True, "rank": rank, "size": size} for rank in range(size)
        ]
        for worker in workers:
            worker.ask("allreduce", 1.0)
        assert [worker.reply() for worker in workers] == [{"sum": float(size)}] * size
        for worker in workers:
            worker.ask("shutdown")
        assert [worker.reply() for worker in workers] == [{"initialized": False}] * size
        assert [worker.close() for worker in workers] == [0] * size
