"""Errors a user may see. Each message says what was received, what was expected and the fix."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of all errors of this package. Command lines print its text without a traceback."""


class ConfigurationError(ElasticError, ValueError):
    """A flag, a configuration value or an argument is wrong. Nothing has been started."""


class NonFiniteLossError(ConfigurationError):
    """A loss is NaN or infinite, and the job was asked to stop then: nobody is started again."""


class ModelModuleError(ConfigurationError):
    """The user's model module does not keep its contract (see `api/model_module.py`)."""


class DataError(ConfigurationError):
    """The data have the wrong structure, or cannot be reproduced by another worker."""


class InputUnavailableError(ElasticError):
    """Data cannot be read at present; another worker, or a later one, may be able to."""


class FunctionFailedError(ElasticError):
    """A function that was run on workers has failed there; the text has a worker's traceback."""


class MasterUnreachableError(ElasticError):
    """The master did not answer, or refused this worker."""


class CheckpointDamagedError(ConfigurationError):
    """A checkpoint is not what was written; the one before it may be whole."""


class CheckpointNotWrittenError(ElasticError):
    """The disk is full or away. The training itself is as it was."""


class CheckpointMissingError(ElasticError):
    """A result that another worker must have saved is not there."""


class LedgerError(ElasticError):
    """A ledger of used examples is missing or damaged, or its epoch has not ended."""


class WeightsDifferError(ElasticError):
    """This worker does not hold the weights that the others hold. It ends, and is replaced."""


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
    """This worker has been told to leave and is not needed in any further round."""


class LeavingAloneError(WorkerLeavingError):
    """It leaves without a master that would have heard of it."""


class ExpelledError(WorkerLeavingError):
    """The master has given it up: the job goes on without it."""
