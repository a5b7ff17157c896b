"""What only one worker of all is to do: who does it, and how the others wait for it.

    with root_only() as root:
        if root:
            table.to_csv("history.csv")

The master decides (`master/machine/claims.py`): it knows who lives. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from hvd_elastic_keras.common import env, protocol
from hvd_elastic_keras.common.env import WorkerEnvironment
from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.worker.client import MasterClient
from hvd_elastic_keras.worker.elastic_session import ElasticSession
from hvd_elastic_keras.worker.launched_session import session_of_launcher
from hvd_elastic_keras.worker.session_of_process import session_of_process

WAIT_LIMIT_S = 1800.0
"""How long a worker waits for another one that is at work and lives."""
BLOCK = ""

log = logging.getLogger(__name__)


def is_root() -> bool:
    """Whether this worker stands for all: one of them does, and always one that lives.

    It is rank 0 while a training runs, and stays it afterwards; before the first training it is the
    first worker that was started. Alone, it is this process.

        if hvd_elastic_keras.is_root():
            print("trained", history.history["loss"])

    To write a file, use `root_only`: if this worker is killed meanwhile, another one goes on there.

    Raises:
      MasterUnreachableError: the launcher is gone.
    """
    environment = env.worker_environment()
    if environment is None:
        launched = session_of_launcher()
        return launched is None or launched.place.rank == 0
    if is_child(environment):
        return _client_of_child(environment).root() == environment.worker_id
    return _turns(environment).is_root()


@contextlib.contextmanager
def root_only() -> Iterator[bool]:
    """A block of a script that one worker runs, while the others wait until it is done.

        with hvd_elastic_keras.root_only() as root:
            if root:
                np.save("predictions.npy", predictions)
        predictions = np.load("predictions.npy")      # on all workers

    All workers must come to it, as to all of the script. If the one that runs it is lost, or leaves
    the block with an error, another one runs it from its beginning; a worker that is started later
    and catches up with the script leaves it out. Alone, the block is just run.

    Not for what all workers have to do together, such as `fit`, `evaluate` during it, or a
    collective of Horovod's.

    Yields:
      Whether this worker is the one.

    Raises:
      MasterUnreachableError: the launcher is gone.
      ElasticError: the one that runs it does not come to an end.
    """
    environment, turns = env.worker_environment(), turns_of_worker()
    if turns is not None:
        with turns.turn(BLOCK, "a block of root_only()") as mine:
            yield mine
    else:
        yield environment is None or is_root()


def is_child(environment: WorkerEnvironment) -> bool:
    """Whether this process is one that the worker has started, and so does not speak for it."""
    return environment.keeper_pid not in (None, os.getppid())


class Desk(Protocol):
    """Who gives turns to workers."""

    def root(self) -> str:
        """The worker that stands for all."""

    def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits for a while until it is this worker's turn, or another one has done it."""

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Gives a turn back."""


class Member(Protocol):
    """What turns need to know of this worker."""

    @property
    def worker_id(self) -> str:
        """Identity of this process among all."""

    @property
    def place(self) -> protocol.Assignment | None:
        """That in the newest round of the present training; None outside of trainings."""

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""

    @property
    def in_training(self) -> bool:
        """Whether that training is neither finished nor over."""

    @property
    def progress(self) -> int:
        """Atomic steps in it."""

    @property
    def client(self) -> Desk:
        """Where to ask."""


class Turns:
    """Asks for the turns of this process."""

    def __init__(self, session: Member) -> None:
        self._session = session
        self._point: tuple[int, bool, int] | None = None
        self._calls: Counter[str] = Counter()

    def is_root(self) -> bool:
        """Whether this worker stands for all."""
        place = self._session.place
        if place is not None:
            return place.rank == 0
        return self._session.client.root() == self._session.worker_id

    @contextlib.contextmanager
    def turn(self, name: str, what: str, *, again: bool = False) -> Iterator[bool]:
        """Waits until it is this worker's turn, or another one has done it.

        Args:
          name: which turns exclude each other; see `protocol.ClaimRequest`.
          what: the same for people.
          again: it was done at this point, but is not there any more.

        Yields:
          Whether it is this worker's turn. It is over at the end of the block.
        """
        if not self._wait(self._request(name, again), what):
            yield False
            return
        done = False
        try:
            yield True
            done = True
        finally:
            self._session.client.release(
                protocol.ReleaseRequest(worker_id=self._session.worker_id, name=name, done=done)
            )

    def _request(self, name: str, again: bool) -> protocol.ClaimRequest:
        session = self._session
        point = (session.training, not session.in_training, session.progress)
        if point != self._point:
            self._point, self._calls = point, Counter()
        number, call = self._calls[name], self._calls.total()
        if again:
            number, call = number - 1, call - 1  # of the call that was answered with "done"
        else:
            self._calls[name] += 1
        return protocol.ClaimRequest(
            worker_id=session.worker_id,
            name=name,
            training=point[0],
            finished=point[1],
            progress=point[2],
            number=number,
            call=call,
            again=again,
        )

    def _wait(self, request: protocol.ClaimRequest, what: str) -> bool:
        began = time.monotonic()
        told = False
        while True:
            reply = self._session.client.claim(request)
            if reply.granted or reply.done:
                return reply.granted
            waited_s = time.monotonic() - began
            if waited_s > WAIT_LIMIT_S:
                raise ElasticError(
                    f"{reply.holder or 'The root'} has not finished {what} within "
                    f"{WAIT_LIMIT_S:.0f} s, and this worker cannot go on before it. If only some "
                    "of the workers come to this place of the script, let all of them do so."
                )
            if not told:
                told = True
                log.warning(
                    "waiting for %s, which is at work on %s", reply.holder or "the root", what
                )


@functools.lru_cache(maxsize=1)
def _turns_of(session: Member) -> Turns:
    return Turns(session)


def _turns(environment: WorkerEnvironment) -> Turns:
    return _turns_of(ElasticSession.current or session_of_process(environment))


def turns_of_worker() -> Turns | None:
    """Those of this process; None if it is alone, or if a worker has started it."""
    environment = env.worker_environment()
    if environment is None:
        launched = session_of_launcher()
        return None if launched is None else _turns_of(launched)
    return None if is_child(environment) else _turns(environment)


def _client_of_child(environment: WorkerEnvironment) -> MasterClient:
    return MasterClient(environment, lambda _: None, lambda _: None)
