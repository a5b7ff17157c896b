"""Trainings that take turns, an epoch each, so that all see the same machine.

On a machine that others share, speed changes from one second to the next. The ratio of two
consecutive epochs changes little, and the median of such ratios changes even less.
"""

from __future__ import annotations

import collections
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import keras

LIMIT_S = 300.0
"""Seconds within which an epoch must end; the first epoch includes what is compiled before it."""


class EpochTime(NamedTuple):
    """Seconds of an epoch: by the clock, and of the processors that worked for its process.

    A virtual machine on a busy host loses time by the clock, but little processor time.
    """

    wall: float
    processors: float


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Turns(keras.callbacks.Callback):
    """Begins each epoch of a `fit` when told to, and reports how long the epoch took."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._connection.recv()
        self._began = _now()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wall, processors = _now()
        self._connection.send(EpochTime(wall - self._began[0], processors - self._began[1]))


class Trainings:
    """Processes that train. Each one waits for its turn.

    Args:
      connections: connections to the `Turns` of each kind.
    """

    def __init__(self, connections: Mapping[str, Connection]) -> None:
        self._connections = connections

    def turn(self, kind: str) -> EpochTime:
        """Lets one kind train its next epoch; returns the epoch's time.

        Raises:
          EOFError: if the training has ended.
          TimeoutError: if the epoch takes longer than `LIMIT_S`.
        """
        connection = self._connections[kind]
        connection.send("begin")
        if not connection.poll(LIMIT_S):
            raise TimeoutError(f"an epoch of {kind} took longer than {LIMIT_S:.0f} s")
        epoch: EpochTime = connection.recv()
        return epoch

    def epochs(self, count: int) -> list[dict[str, EpochTime]]:
        """Returns this many epochs of each kind, after a first epoch that compiles."""
        kinds = collections.deque(self._connections)
        for kind in kinds:
            self.turn(kind)
        turns = []
        for _ in range(count):
            turns.append({kind: self.turn(kind) for kind in kinds})
            kinds.rotate()  # each kind is first equally often
        return turns


def _train(train: Callable[[Turns], None], connection: Connection) -> None:
    train(Turns(connection))


@contextmanager
def trainings(kinds: Mapping[str, Callable[[Turns], None]]) -> Iterator[Trainings]:
    """Starts a process for each kind, and kills them at the end.

    Args:
      kinds: the function that each process calls, with a callback for its `fit`. It must be
        picklable.
    """
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    with ExitStack() as stack:
        for kind, train in kinds.items():
            connections[kind], theirs = context.Pipe()
            process = context.Process(target=_train, args=(train, theirs), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()
        yield Trainings(connections)
