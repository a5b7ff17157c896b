"""Errors a user may see. Each message says what was received, what was expected and the fix."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of all errors of this package. Command lines print its text without a traceback."""


class ConfigurationError(ElasticError, ValueError):
    """A flag, a configuration value or an argument is wrong. Nothing has been started."""


class ModelModuleError(ConfigurationError):
    """The user's model module does not keep its contract (see `training/model_module.py`)."""


class DataError(ConfigurationError):
    """The data have the wrong structure, or cannot be reproduced by another worker."""


class InputUnavailableError(ElasticError):
    """Data cannot be read at present; another worker, or a later one, may be able to."""


class MasterUnreachableError(ElasticError):
    """The master did not answer, or refused this worker."""


class CheckpointMissingError(ElasticError):
    """A result that another worker must have saved is not there."""


class LedgerError(ElasticError):
    """A ledger of used examples is missing or damaged, or its epoch has not ended."""


class CollectiveFailedError(ElasticError):
    """A collective was interrupted, because a peer is gone or the round was closed.

    The worker's state is that of its last finished step; it can enter the next round.
    """


class TrainingOverError(ElasticError):
    """The job has finished this training without this worker, which came too late for it.

    Its result is in the job directory. The script goes on to its next part, as those of the other
    workers have done.
    """


class WorkerLeavingError(ElasticError):
    """This worker has been told to leave and is not needed in any further round.

    `job_stops` is true if the whole job stops, so that rank 0 has to keep the state.
    """

    def __init__(self, reason: str, job_stops: bool = False) -> None:
        super().__init__(reason)
        self.job_stops = job_stops
