"""Horovod's runtime in a process that `horovodrun` has started. The world never changes."""

from __future__ import annotations

import horovod.tensorflow as hvd

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.settings.launched_by import LaunchedPlace
from hvd_elastic_keras.worker.horovod_runtime import Communicator


class LaunchedCommunicator(Communicator):
    """Initialises Horovod once, with all processes, from the environment set by the launcher.

    The launcher's store keeps the addresses that the first `hvd.init()` has written, and a second
    one would meet them. So a process is never alone: even its trials before the first step run in
    the world of all processes.
    """

    def __init__(self, launched: LaunchedPlace) -> None:
        super().__init__(launched.iface, launched.hostname, launched.gloo_timeout_s, master=None)

    def start_alone(self) -> None:
        """Initialises Horovod with all processes, unless it is initialised."""
        self._start()

    def start(self, place: Assignment) -> None:
        """Initialises Horovod with all processes, unless it is initialised.

        Raises:
          CollectiveFailedError: another process went away meanwhile.
        """
        self._start()

    def shut_down(self) -> None:
        """Does nothing: the world lasts as long as the process."""

    def _start(self) -> None:
        if hvd.is_initialized():
            return
        try:
            hvd.init()
        except ValueError as error:
            raise CollectiveFailedError(f"Horovod could not be initialised: {error}") from error
