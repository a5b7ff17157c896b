"""How long a sync takes by its two ways, against raw sockets and a memory copy, without a job.

The processes of one round measure the ways in turn, so that all ways see the same machine. The
state goes to the last process directly, then by the collective. Then the same number of bytes goes
from the first to the last process through a plain TCP connection. At last the bytes are copied in
memory. With three processes, the second one holds the state too.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

HERE = Path(__file__).resolve().parent
IS_MEMBER = "BENCH_SYNC_MEMBER"
TENSORS = 16
BLOCK = 2**20
DIRECT, COLLECTIVE, RAW, COPY = "directly", "by the collective", "raw sockets", "memory copy"

_SIZES = flags.DEFINE_list("state_mb", ["1", "250", "1000"], "Sizes of the state.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Processes of the round.", lower_bound=2)
_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Of all of it.")


class Round:
    """One process of the round."""

    def __init__(self) -> None:
        from hvd_elastic_keras.worker.membership import Membership

        self.communicator = Membership.of_process().communicator()
        self.communicator.start_alone()
        self.rank, self.size = self.communicator.rank, self.communicator.size

    def measure(self, megabytes: float) -> dict[str, float]:
        """Returns the seconds of each way, until the slowest member is done."""
        import numpy as np

        size = int(megabytes * 2**20)
        source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
        ways: dict[str, Callable[[], None]] = {
            DIRECT: self.syncing(size, least=0),
            COLLECTIVE: self.syncing(size, least=2**62),
            RAW: self.raw(size),
            COPY: lambda: np.copyto(target, source) if self.rank == 0 else None,
        }
        return {name: self.timed(way) for name, way in ways.items()}

    def timed(self, way: Callable[[], None]) -> float:
        """Returns the seconds from when all are there until all are done."""
        self.communicator.barrier("before")
        began = time.perf_counter()
        way()
        self.communicator.barrier("after")
        return time.perf_counter() - began

    def syncing(self, size: int, least: int) -> Callable[[], None]:
        """Returns a sync of the last process to the root's state, with the assignment."""
        import tensorflow as tf

        from hvd_elastic_keras.state import broadcast
        from hvd_elastic_keras.worker.transfer import exchange

        is_behind = self.rank == self.size - 1
        shape = [size // TENSORS // 4]
        variables = [tf.Variable(tf.fill(shape, float(not is_behind))) for _ in range(TENSORS)]

        def sync() -> None:
            exchange.LEAST_BYTES = least
            _, arrival = broadcast.from_root(
                self.communicator,
                is_root=self.rank == 0,
                states=dict,
                groups={"all": variables},
                has_root_state=lambda _: not is_behind,
                name="sync",
            )
            if is_behind:
                for variable, tensor in zip(variables, arrival.tensors(), strict=True):
                    variable.assign(tensor)

        return sync

    def raw(self, size: int) -> Callable[[], None]:
        """Returns a function that sends zeros from first to last process, into fresh memory."""
        import numpy as np

        listener = socket.create_server(("127.0.0.1", 0))
        port = str(listener.getsockname()[1]).encode()
        first = int(self.communicator.gather_bytes(port, "port")[0])

        def send() -> None:
            block = np.zeros(BLOCK, np.uint8)
            with listener.accept()[0] as connection:
                for start in range(0, size, BLOCK):
                    connection.sendall(block[: size - start])

        def receive() -> None:
            with socket.create_connection(("127.0.0.1", first)) as connection:
                target, done = np.empty(size, np.uint8), 0
                while done < size:
                    done += connection.recv_into(target[done : done + BLOCK])

        return {0: send, self.size - 1: receive}.get(self.rank, lambda: None)


def work() -> None:
    """Measures as a process of the round; the first one prints."""
    member = Round()
    for megabytes in _SIZES.value:
        runs = [member.measure(float(megabytes)) for _ in range(_REPETITIONS.value)]
        if member.rank == 0:
            print(f"{megabytes} MB, {member.size} workers: {figures(runs)}", flush=True)


def figures(runs: list[dict[str, float]]) -> str:
    """Returns medians and ratios as text."""
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    ratios = [
        f"{DIRECT} / {name} {statistics.median(run[DIRECT] / run[name] for run in runs):.2f}"
        for name in (COLLECTIVE, RAW, COPY)
    ]
    return ", ".join([*(f"{name} {seconds:.3f} s" for name, seconds in median.items()), *ratios])


def main(_: list[str]) -> None:
    """Starts the processes, or runs as one of them."""
    if IS_MEMBER in os.environ:
        work()
        return
    count = str(_WORKERS.value)
    environment = {
        **{"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        **{"PYTHONPATH": str(HERE.parents[1]), IS_MEMBER: "yes"},
    }
    command = [
        *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", count),
        *("-H", f"localhost:{count}", "--network-interfaces", "lo", sys.executable, *sys.argv),
    ]
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    app.run(main)
