"""Refuses `mpirun` and similar launchers, under which every process would train alone."""

from __future__ import annotations

import time

from hvd_elastic_keras.common import errors
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import launched_by
from hvd_elastic_keras.worker.launched_session import script, session_of_launcher


def refuse() -> None:
    """Ends a process that another launcher has started as one of several; rank 0 says why.

    Does nothing under `horovodrun -np N`, which gives its processes places (`LaunchedSession`).

    Raises:
      ConfigurationError: on rank 0, with the command to run instead.
      SystemExit: on the other ranks, with the same exit code and without a message.
    """
    other = launched_by.other_launcher()
    if other is None or session_of_launcher() is not None:
        return
    errors.show_in_one_line()
    if other.rank == 0:
        raise ConfigurationError(other.refusal(script()))
    time.sleep(launched_by.FIRST_SPEAKS_S)  # processes do not know each other: no event to wait for
    raise SystemExit(1)
