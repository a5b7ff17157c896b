"""Blocks of a script that only one worker runs, while the others wait for it.

    with root_only() as root:
        if root:
            table.to_csv("history.csv")

The master decides which worker runs a block (`master/machine/claims.py`), because it knows which
workers are alive. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker.client import MasterClient
from hvd_elastic_keras.worker.elastic_session import ElasticSession
from hvd_elastic_keras.worker.launched_session import session_of_launcher
from hvd_elastic_keras.worker.session_of_process import session_of_process

WAIT_LIMIT_S = 1800.0
"""How long a worker waits for another one that is at work and alive."""
BLOCK = ""

log = logging.getLogger(__name__)


def is_root() -> bool:
    """Whether this worker is the root, which stands for all. One living worker always is.

    The root is rank 0 while a training runs, and the same worker afterwards. Before the first
    training, it is the first worker that was started. A process that is alone is the root.

        if hvd_elastic_keras.is_root():
            print("trained", history.history["loss"])

    To write a file, use `root_only`: if the root is killed meanwhile, another worker does it.

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
    """Lets one worker run a block of a script, while the others wait until it is done.

        with hvd_elastic_keras.root_only() as root:
            if root:
                np.save("predictions.npy", predictions)
        predictions = np.load("predictions.npy")      # on all workers

    All workers must come to the block, as to all of the script. If the worker that runs it is lost,
    or leaves the block with an error, another worker runs it from its beginning. A worker that is
    started later and catches up with the script skips the block. A process that is alone runs it.

    Do not use it for calls that all workers have to make together, such as `fit`, `evaluate` during
    `fit`, or a collective of Horovod.

    Yields:
      Whether this worker runs the block.

    Raises:
      MasterUnreachableError: the launcher is gone.
      ElasticError: the worker that runs the block does not come to an end.
    """
    environment, turns = env.worker_environment(), turns_of_worker()
    if turns is not None:
        with turns.turn(BLOCK, "a block of root_only()") as turn:
            yield turn.is_mine
    else:
        yield environment is None or is_root()


def is_child(environment: WorkerEnvironment) -> bool:
    """Whether this process was started by the worker, and so does not speak for it."""
    return environment.keeper_pid not in (None, os.getppid())


class Desk(Protocol):
    """Gives turns to workers."""

    def root(self) -> str:
        """Returns the id of the worker that stands for all."""

    def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits for a while until this worker has the turn, or another worker has done it."""

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Gives a turn back."""


class Member(Protocol):
    """The session of this worker, as far as turns need it."""

    @property
    def worker_id(self) -> str:
        """Identity of this process among all workers."""

    @property
    def place(self) -> protocol.Assignment | None:
        """Place in the newest round of the present training; None outside of trainings."""

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""

    @property
    def in_training(self) -> bool:
        """Whether that training is neither finished nor over."""

    @property
    def progress(self) -> int:
        """Atomic steps taken in that training; 0 outside of trainings."""

    @property
    def client(self) -> Desk:
        """The desk to ask for turns."""


@dataclasses.dataclass
class Turn:
    """One turn.

    Attributes:
      is_mine: whether this worker has it; else another worker has done it.
      result: what is known of the newest turn of this name that has been done, which is this one
        if another worker has done it. Empty if a later one has been done. A worker that has the
        turn may put what it has done here.
    """

    is_mine: bool
    result: str = ""


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
    def turn(
        self, name: str, what: str, *, again: bool = False, limit_s: float = WAIT_LIMIT_S
    ) -> Iterator[Turn]:
        """Waits until this worker has the turn, or another worker has done it.

        Args:
          name: name of the turns, of which only one is given at a time; see
            `protocol.ClaimRequest`.
          what: description of the turn for people.
          again: whether it was done at this point, but the result is missing.
          limit_s: how long to wait for another worker that is at work and alive.

        Yields:
          The turn, which is over at the end of the block.
        """
        reply = self._wait(self._request(name, again), what, limit_s)
        turn = Turn(reply.granted, reply.result)
        if not turn.is_mine:
            yield turn
            return
        done = False
        try:
            yield turn
            done = True
        finally:
            self._session.client.release(
                protocol.ReleaseRequest(
                    worker_id=self._session.worker_id, name=name, done=done, result=turn.result
                )
            )

    def _request(self, name: str, again: bool) -> protocol.ClaimRequest:
        session = self._session
        point = (session.training, not session.in_training, session.progress)
        if point != self._point:
            self._point, self._calls = point, Counter()
        number, call = self._calls[name], self._calls.total()
        if again:
            number, call = number - 1, call - 1  # those of the call that was answered with "done"
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

    def _wait(
        self, request: protocol.ClaimRequest, what: str, limit_s: float
    ) -> protocol.ClaimReply:
        began = time.monotonic()
        told = False
        while True:
            reply = self._session.client.claim(request)
            if reply.granted or reply.done:
                return reply
            waited_s = time.monotonic() - began
            if waited_s > limit_s:
                raise ElasticError(
                    f"{reply.holder or 'The root'} has not finished {what} within "
                    f"{limit_s:.0f} s, and this worker cannot go on before it. If only some "
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
    """Returns the turns of this process; None if it is alone, or was started by a worker."""
    environment = env.worker_environment()
    if environment is None:
        launched = session_of_launcher()
        return None if launched is None else _turns_of(launched)
    return None if is_child(environment) else _turns(environment)


def _client_of_child(environment: WorkerEnvironment) -> MasterClient:
    return MasterClient(environment, lambda _: None, lambda _: None)
