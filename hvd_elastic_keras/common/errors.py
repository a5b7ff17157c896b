"""Errors a user may see. Each message says what was received, what was expected and the fix."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of all errors of this package. Command lines print its text without a traceback."""


class ConfigurationError(ElasticError, ValueError):
    """A flag, a configuration value or an argument is wrong. Nothing has been started."""


class NonFiniteLossError(ConfigurationError):
    """A loss is NaN or infinite, and the job was asked to stop then. No worker is restarted."""


class ModelModuleError(ConfigurationError):
    """The user's model module does not keep its contract (see `api/model_module.py`)."""


class DataError(ConfigurationError):
    """The data have the wrong structure, or cannot be reproduced by another worker."""


class InputUnavailableError(ElasticError):
    """Data cannot be read at present. Another worker, or a later one, may be able to read them."""


class FunctionFailedError(ElasticError):
    """A function failed on the workers that ran it. The text has a worker's traceback."""


class MasterUnreachableError(ElasticError):
    """The master did not answer, or refused this worker."""


class CheckpointDamagedError(ConfigurationError):
    """A checkpoint differs from what was written. The checkpoint before it may be intact."""


class CheckpointNotWrittenError(ElasticError):
    """A checkpoint was not written: the disk is full or away. The training is not affected."""


class CheckpointMissingError(ElasticError):
    """A result that another worker must have saved is missing."""


class LedgerError(ElasticError):
    """A ledger of used examples is missing or damaged, or its epoch has not ended."""


class WeightsDifferError(ElasticError):
    """This worker's weights differ from the others' weights. It ends, and is replaced."""


class CollectiveFailedError(ElasticError):
    """A collective was interrupted, because a peer is gone or the round was closed.

    The worker has the state of its last finished step, and can enter the next round.
    """


class TrainingOverError(ElasticError):
    """The job has finished this training without this worker, which came too late for it.

    The result is in the job directory. The script goes on to its next part, as the scripts of the
    other workers have done.
    """


class WorkerLeavingError(ElasticError):
    """This worker has been told to leave and is not needed in any further round."""


class LeavingAloneError(WorkerLeavingError):
    """This worker leaves, and no master has heard of it."""


class ExpelledError(WorkerLeavingError):
    """The master has given this worker up. The job goes on without it."""
