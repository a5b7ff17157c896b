"""The rounds in which a worker takes part: membership, and Horovod's runtime in each round.

`OwnRounds` is for a loop that joins, enters and leaves rounds itself. `ProcessRounds` is for a
process whose own code calls Horovod's functions: with `elastic.run`, that code runs inside a round,
and calls `hvd.rank()` and `hvd.size()` at any time, also before and after the round. A `fit` within
a function of `elastic.run` is in a round that was entered for it; see `api/fit_in_elastic_run.py`.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Protocol

from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.common.protocol import ALONE, Assignment
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus
from hvd_elastic_keras.worker.session import Session


class Rounds(Protocol):
    """The rounds in which a loop takes part."""

    @property
    def membership(self) -> Membership:
        """The membership of this process."""

    @property
    def session(self) -> Session:
        """The membership, as far as the loop uses it."""

    @property
    def communicator(self) -> Communicator:
        """Horovod's runtime, for collectives."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Makes this process the whole world within a `with` statement, for trials."""

    def begin(self, place: Assignment) -> None:
        """Initialises Horovod for a round.

        Raises:
          CollectiveFailedError: a peer went away meanwhile, or the round was closed.
        """

    def end(self) -> None:
        """Leaves the present round. Does nothing if there is none."""


class OwnRounds:
    """The rounds of a loop that enters and leaves them itself."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def membership(self) -> Membership:
        """The membership of this process."""
        return self._membership

    @property
    def session(self) -> Session:
        """The session of this process."""
        return self._membership.session

    @functools.cached_property
    def communicator(self) -> Communicator:
        """Horovod's runtime, made when it is first needed."""
        return self._membership.communicator()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Initialises Horovod with this process alone. Traced graphs keep their collectives."""
        self.communicator.start_alone()
        try:
            with self.communicator.tracing():
                yield
        finally:
            self.communicator.shut_down()

    def begin(self, place: Assignment) -> None:
        """Initialises Horovod for a round."""
        _initialise(self.communicator, place)

    def end(self) -> None:
        """Shuts Horovod down."""
        self.communicator.shut_down()


NO_LIMIT = 0
"""`num_micro_batches` of a loop that does not cut its batch: it can use any number of workers."""


class ProcessRounds:
    """This process's membership and Horovod's runtime, which are always in the same round.

    Graphs traced between `start` and `leave` keep their collectives, whatever the world size.

    Args:
      membership: gives this process its places.
      communicator: Horovod's runtime; None takes the communicator of the membership.
    """

    def __init__(self, membership: Membership, communicator: Communicator | None = None) -> None:
        self.membership = membership
        self.session = membership.session
        self.communicator = communicator or membership.communicator()
        self.place: Assignment = ALONE
        self._began = time.monotonic()
        self._started = False
        self._tracing = contextlib.ExitStack()

    @property
    def size(self) -> int:
        """Number of workers in the present round; 1 outside of rounds."""
        return self.place.size

    def start_alone(self) -> None:
        """Initialises Horovod with this process as its whole world, unless it is initialised.

        Under `horovodrun`, processes are never alone: Horovod is initialised with all of them.
        """
        if not self._started:
            self.start(self.membership.place_before_rounds)

    def join(self) -> None:
        """Begins the next training of this process, which is warm and wants a place in a round."""
        try:
            check_gpus(self.membership)
        except WorkerLeavingError as error:
            self.membership.end_process(error)
        self.session.join(self.communicator, NO_LIMIT, time.monotonic() - self._began)

    def start(self, place: Assignment) -> None:
        """Leaves the present round, if any, and initialises Horovod for another.

        Raises:
          CollectiveFailedError: a peer went away meanwhile, or the round was closed.
        """
        self.leave()
        _initialise(self.communicator, place)
        self.place = place
        self._started = True
        self._tracing.enter_context(self.communicator.tracing())

    def leave(self) -> None:
        """Shuts Horovod down. Does nothing if it is not initialised."""
        self._tracing.close()
        self.communicator.shut_down()
        self.place = ALONE
        self._started = False


def _initialise(communicator: Communicator, place: Assignment) -> None:
    """Initialises Horovod for a round, or for this process alone if it is in no job."""
    if place.rendezvous:
        communicator.start(place)
    else:
        communicator.start_alone()


@functools.cache
def rounds_of_process() -> ProcessRounds:
    """Returns the rounds of this process, which is a job's worker or is alone."""
    return ProcessRounds(Membership.of_process())
