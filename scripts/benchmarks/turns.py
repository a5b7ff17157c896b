"""Trainings that take turns, an epoch each, so that all see the same machine.

On a machine that others share, speed changes from one second to the next. A ratio of two epochs
that follow one another hardly notices, and the median of such ratios notices less.
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
"""Within which an epoch ends, the first one with all that is compiled before it."""


class EpochTime(NamedTuple):
    """Seconds of an epoch: by the clock, and those that processors worked for its process.

    A virtual machine whose host has too much to do loses time by the clock, but little of the
    processors'.
    """

    wall: float
    processors: float


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Turns(keras.callbacks.Callback):
    """Begins each epoch of a `fit` when it is told to, and tells how long the epoch took."""

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
    """Processes that train, each of which waits for its turn.

    Args:
      connections: to the `Turns` of each kind.
    """

    def __init__(self, connections: Mapping[str, Connection]) -> None:
        self._connections = connections

    def turn(self, kind: str) -> EpochTime:
        """The next epoch of one kind.

        Raises:
          EOFError: the training ended.
          TimeoutError: the epoch took longer than `LIMIT_S`.
        """
        connection = self._connections[kind]
        connection.send("begin")
        if not connection.poll(LIMIT_S):
            raise TimeoutError(f"an epoch of {kind} took longer than {LIMIT_S:.0f} s")
        epoch: EpochTime = connection.recv()
        return epoch

    def epochs(self, count: int) -> list[dict[str, EpochTime]]:
        """So many epochs of each kind, after a first one that compiles."""
        kinds = collections.deque(self._connections)
        for kind in kinds:
            self.turn(kind)
        turns = []
        for _ in range(count):
            turns.append({kind: self.turn(kind) for kind in kinds})
            kinds.rotate()  # each kind is the first one as often as the others
        return turns


def _train(train: Callable[[Turns], None], connection: Connection) -> None:
    train(Turns(connection))


@contextmanager
def trainings(kinds: Mapping[str, Callable[[Turns], None]]) -> Iterator[Trainings]:
    """Starts a process for each kind, and kills them at the end.

    Args:
      kinds: what each process calls, with a callback for its `fit`; can be pickled.
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
