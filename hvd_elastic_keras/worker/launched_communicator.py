"""Horovod's runtime in a process that `horovodrun` has started: its world never changes."""

from __future__ import annotations

import horovod.tensorflow as hvd

from hvd_elastic_keras.common.env import LaunchedPlace
from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.worker.horovod_runtime import Communicator


class LaunchedCommunicator(Communicator):
    """Initialised once, with all processes, by what the launcher has put into the environment.

    The launcher's store keeps what the first `hvd.init()` has written there, so that a second one
    would meet addresses of the first. So a process is never alone: also what it tries out before
    the first step runs in the world of all.
    """

    def __init__(self, launched: LaunchedPlace) -> None:
        super().__init__(launched.iface, launched.hostname, launched.gloo_timeout_s, master=None)

    def start_alone(self) -> None:
        """Initialises Horovod with all, unless it is."""
        self._start()

    def start(self, place: Assignment) -> None:
        """Initialises Horovod with all, unless it is.

        Raises:
          CollectiveFailedError: another process went away meanwhile.
        """
        self._start()

    def shut_down(self) -> None:
        """The world lasts as long as the process."""

    def _start(self) -> None:
        if hvd.is_initialized():
            return
        try:
            hvd.init()
        except ValueError as error:
            raise CollectiveFailedError(f"Horovod could not be initialised: {error}") from error
