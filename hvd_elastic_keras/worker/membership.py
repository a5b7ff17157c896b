"""The membership of this process in a job, or of a process that is alone."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable
from typing import NoReturn

from hvd_elastic_keras.common import errors
from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.common.protocol import ALONE, Assignment, InputPosition
from hvd_elastic_keras.observe.console import Screen
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker import network, other_launchers
from hvd_elastic_keras.worker.elastic_session import ElasticSession
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.launched_communicator import LaunchedCommunicator
from hvd_elastic_keras.worker.launched_session import LaunchedSession, session_of_launcher
from hvd_elastic_keras.worker.session import Session, SoloSession
from hvd_elastic_keras.worker.session_of_process import session_of_process

log = logging.getLogger(__name__)
GLOO_TIMEOUT_S = 30


@dataclasses.dataclass(frozen=True)
class Membership:
    """The membership of this process.

    Attributes:
      session: talks to the master.
      environment: settings from the launcher; None if there is no launcher.
      own: the session of a user's script, whose process ends when its worker has to leave. None if
        the caller ends the process.
    """

    session: Session
    environment: env.WorkerEnvironment | None
    own: ElasticSession | None = None

    @classmethod
    def of_process(cls, session: Session | None = None) -> Membership:
        """Returns the membership of this process. Uses `session`, which is started, if given."""
        environment = env.worker_environment()
        if session is not None:
            return cls(session, environment)
        if environment is None:
            other_launchers.refuse()
            errors.show_in_one_line()
            return cls(session_of_launcher() or SoloSession(), None)
        own = session_of_process(environment)
        return cls(own, environment, own)

    @property
    def has_others(self) -> bool:
        """Whether other processes train with this one, or may do so later."""
        return self.environment is not None or self.launched is not None

    @property
    def begins_alone(self) -> bool:
        """Whether this process takes its first steps alone. Call this from one thread only."""
        if self.launched is not None:
            return self.launched.place.size == 1
        return self.worker is None or self.worker.is_only_worker

    @property
    def launched(self) -> LaunchedSession | None:
        """The session, if `horovodrun` has started this process as one of several; else None."""
        return self.session if isinstance(self.session, LaunchedSession) else None

    @property
    def worker(self) -> ElasticSession | None:
        """The session, if this process is a worker of a job; else None."""
        return self.session if isinstance(self.session, ElasticSession) else None

    @property
    def term(self) -> Callable[[], int] | None:
        """Function that returns the term of the newest master that has answered.

        None if there is no master.
        """
        return None if self.worker is None else self.worker.term

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave the job."""
        return self.worker is not None and self.worker.leaving

    def others_train(self, training: int) -> bool:
        """Whether other workers are in this training already. Call this from one thread only."""
        return self.worker is not None and self.worker.others_train(training)

    def others_read(self, training: int) -> InputPosition | None:
        """Returns where other workers of this training read; None if there are none.

        Call this from one thread only.
        """
        return None if self.worker is None else self.worker.others_read(training)

    @property
    def place_before_rounds(self) -> Assignment:
        """Place of this process before it has entered a round."""
        return ALONE if self.launched is None else self.launched.place

    @property
    def screen(self) -> Screen:
        """Where progress is shown. A notebook can redraw a line, as a terminal can."""
        if self.environment:
            return Screen.LAUNCHER
        redraws = sys.stdout.isatty() or _in_notebook()
        return Screen.TERMINAL if redraws else Screen.LINES

    def communicator(self) -> Communicator:
        """Makes Horovod's runtime for this membership."""
        environment = self.environment
        if self.launched is not None:
            return LaunchedCommunicator(self.launched.launched)
        if environment is None:
            return Communicator("lo", "localhost", GLOO_TIMEOUT_S, master=None)
        way = network.way_to(environment.master, environment.iface)
        return Communicator(
            way.interface,
            environment.hostname,
            environment.gloo_timeout_s,
            master=way.master,
            timeline_dir=environment.timeline_dir,
        )

    def end_process(self, error: WorkerLeavingError) -> NoReturn:
        """Ends a user's script with exit code 0: there is nothing left to do for this process.

        Raises:
          WorkerLeavingError: the caller has to end the process; see `own`.
        """
        if self.own is None:
            raise error
        log.info("leaving: %s", error)
        self.own.close()
        raise SystemExit(0) from error


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel. `ipykernel` may be imported elsewhere, too."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
