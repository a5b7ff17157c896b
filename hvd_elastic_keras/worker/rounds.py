"""The rounds in which a loop takes part: membership, and Horovod's runtime in each round.

`OwnRounds` is for a loop that joins, enters and leaves rounds itself. A `fit` within a function of
`elastic.run` is in a round that was entered for it; see `api/fit_in_elastic_run.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Protocol

from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
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
        if place.rendezvous:
            self.communicator.start(place)
        else:
            self.communicator.start_alone()

    def end(self) -> None:
        """Shuts Horovod down."""
        self.communicator.shut_down()
