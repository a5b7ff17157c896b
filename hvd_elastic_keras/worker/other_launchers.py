"""Under `mpirun` and the like every process would train alone: they are refused."""

from __future__ import annotations

import time

from hvd_elastic_keras.common import env, one_line_errors
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.worker.launched_session import script, session_of_launcher


def refuse() -> None:
    """Ends a process that another launcher has started as one of several; rank 0 says why.

    Not under `horovodrun -np N`, which gives its processes places (`LaunchedSession`).

    Raises:
      ConfigurationError: in rank 0, with the command to run in place.
      SystemExit: in the others, with the same exit code, without a word.
    """
    other = env.other_launcher()
    if other is None or session_of_launcher() is not None:
        return
    one_line_errors.install()
    if other.rank == 0:
        raise ConfigurationError(other.refusal(script()))
    time.sleep(env.FIRST_SPEAKS_S)  # there is nothing to wait for: they do not know each other
    raise SystemExit(1)
