"""How this process belongs to a job, or that it is alone."""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import NoReturn

from hvd_elastic_keras import env
from hvd_elastic_keras.errors import WorkerLeavingError
from hvd_elastic_keras.worker import one_line_errors
from hvd_elastic_keras.worker.communicator import Communicator
from hvd_elastic_keras.worker.session import (
    ElasticSession,
    Session,
    SoloSession,
    session_of_process,
)

log = logging.getLogger(__name__)
GLOO_TIMEOUT_S = 30


@dataclasses.dataclass(frozen=True)
class Membership:
    """The place of this process.

    Attributes:
      session: talks to the master.
      environment: what the launcher said; None if there is none.
      own: the session of a user's script, whose process ends when its worker has to leave; None
        if somebody else looks after that.
    """

    session: Session
    environment: env.WorkerEnvironment | None
    own: ElasticSession | None = None

    @classmethod
    def of_process(cls, session: Session | None = None) -> Membership:
        """That of this process; `session` if it has been started already."""
        environment = env.worker_environment()
        if session is not None:
            return cls(session, environment)
        if environment is None:
            one_line_errors.install()
            return cls(SoloSession(), None)
        own = session_of_process(environment)
        return cls(own, environment, own)

    @property
    def interactive(self) -> bool:
        """Whether progress ends up on a terminal."""
        return self.environment.interactive if self.environment else sys.stdout.isatty()

    def communicator(self) -> Communicator:
        """Horovod, set up for this place."""
        environment = self.environment
        if environment is None:
            return Communicator("lo", "localhost", GLOO_TIMEOUT_S, master=None)
        host, port = environment.master.rsplit(":", 1)
        return Communicator(
            environment.iface,
            environment.hostname,
            environment.gloo_timeout_s,
            master=(host, int(port)),
            timeline_dir=environment.timeline_dir,
        )

    def end_process(self, error: WorkerLeavingError) -> NoReturn:
        """Ends a user's script with exit code 0: there is nothing left to do for this process.

        Raises:
          WorkerLeavingError: somebody else looks after the end of the process.
        """
        if self.own is None:
            raise error
        log.info("leaving: %s", error)
        self.own.close()
        raise SystemExit(0) from error
