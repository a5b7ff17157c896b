"""Errors with which callbacks end a training on all workers, such as the pruning of a trial.

A script may catch such an error and go on, with another `fit` or to its end. So all workers leave
the training together, as they do at its regular end, and each raises its own error. A worker that
comes later reads from the job directory how the training has ended, and raises the same error.

If callbacks of some workers only have failed (a disk is full), these workers leave by themselves,
and the others train on.
"""

from __future__ import annotations

import sys
from typing import Any

from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.worker.horovod_runtime import Communicator


def all_raise(communicator: Communicator, raised: bool) -> bool | None:
    """Asks all workers whether callbacks have raised an error; None if some workers only have."""
    with communicator.collective():
        if not communicator.any_true(raised, "elastic_raised"):
            return False
        return None if communicator.any_true(not raised, "elastic_not_raised") else True


def packed(error: Exception) -> list[Any]:
    """Returns an error as JSON and bytes; empty if `unpacked` could not make it again."""
    kind = type(error)
    try:
        values = [kind.__module__, kind.__qualname__, json_codec.encode(list(error.args))]
        found = unpacked(values)
    except Exception:  # the class may be the user's own
        return []
    return values if type(found) is kind and found.args == error.args else []


def unpacked(values: list[Any]) -> Exception:
    """Returns the error that was given to `packed`.

    Raises:
      ElasticError: this process has no such class of errors.
    """
    module, name, arguments = values
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ElasticError(
            f"The other workers have left this training by an error {module}.{name}, which this "
            "worker does not know. Import its class before fit."
        )
    error: Exception = kind(*json_codec.decode(arguments))
    return error
