"""The rounds of a process whose user code calls Horovod's own functions.

`Trainer` owns its loop and does not need this module. With `elastic.run`, the user's code runs
inside a round. It calls `hvd.rank()` and `hvd.size()` at any time, also before and after the round.
"""

from __future__ import annotations

import contextlib
import functools
import time

from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.common.protocol import ALONE, Assignment
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus

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
        if place.rendezvous:
            self.communicator.start(place)
        else:
            self.communicator.start_alone()
        self.place = place
        self._started = True
        self._tracing.enter_context(self.communicator.tracing())

    def leave(self) -> None:
        """Shuts Horovod down. Does nothing if it is not initialised."""
        self._tracing.close()
        self.communicator.shut_down()
        self.place = ALONE
        self._started = False


@functools.cache
def rounds_of_process() -> ProcessRounds:
    """Returns the rounds of this process, which is a job's worker or is alone."""
    return ProcessRounds(Membership.of_process())
