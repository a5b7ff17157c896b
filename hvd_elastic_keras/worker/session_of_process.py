"""The one session of a process that a launcher has started."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from types import TracebackType

from hvd_elastic_keras.common import errors, patches
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker.elastic_session import ElasticSession

WHY = "an uncaught ConfigurationError ends the job"


@functools.lru_cache(maxsize=1)
def session_of_process(environment: WorkerEnvironment) -> ElasticSession:
    """Returns the session of a script started by a launcher: one for all its `Trainer`s."""
    refuse_what_is_not_caught(environment)
    atexit.register(env.remove_scratch)  # the first to be registered is the last to be called
    session = ElasticSession(environment)
    session.start()
    # A script may end right after `fit`: the master must be told that it is done.
    atexit.register(session.close)
    return session


def refuse_what_is_not_caught(environment: WorkerEnvironment) -> None:
    """Ends the job if the user's script ends with a `ConfigurationError` that it does not catch.

    The script may end so before anything else has needed a session.
    """
    if patches.is_installed(WHY):
        return
    errors.show_in_one_line()
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        # A process that the script has started does not speak for the worker.
        is_worker = environment.keeper_pid in (None, os.getppid())
        if isinstance(error, ConfigurationError) and is_worker:
            session_of_process(environment).refuse(str(error))

    patches.install(sys, "excepthook", hook, WHY)
