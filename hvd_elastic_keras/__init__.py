"""Elastic, fault-tolerant, synchronous data-parallel training for Keras 3 with Horovod.

The names below are loaded on first use, so that importing the package (and `--help` of the
command lines) does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvd_elastic_keras._version import __version__

if TYPE_CHECKING:
    from hvd_elastic_keras.api.callback import ElasticCallback
    from hvd_elastic_keras.api.trainer import Trainer
    from hvd_elastic_keras.cli.functions.run_function import run_function
    from hvd_elastic_keras.common.errors import ElasticError, FunctionFailedError
    from hvd_elastic_keras.common.predictions import read_predictions
    from hvd_elastic_keras.data.sources.cached import CachedSource
    from hvd_elastic_keras.data.sources.random_access import Source
    from hvd_elastic_keras.data.sources.tfds import TfdsSource
    from hvd_elastic_keras.data.sources.tfrecord import TFRecordSource
    from hvd_elastic_keras.loop.root_callback import RootCallback
    from hvd_elastic_keras.settings.training_config import TrainingConfig
    from hvd_elastic_keras.worker.turns import is_root, root_only

__all__ = [
    "CachedSource",
    "ElasticCallback",
    "ElasticError",
    "FunctionFailedError",
    "RootCallback",
    "Source",
    "TFRecordSource",
    "TfdsSource",
    "Trainer",
    "TrainingConfig",
    "__version__",
    "is_root",
    "read_predictions",
    "root_only",
    "run_function",
]

_LAZY = {
    "CachedSource": "hvd_elastic_keras.data.sources.cached",
    "ElasticCallback": "hvd_elastic_keras.api.callback",
    "ElasticError": "hvd_elastic_keras.common.errors",
    "FunctionFailedError": "hvd_elastic_keras.common.errors",
    "RootCallback": "hvd_elastic_keras.loop.root_callback",
    "Source": "hvd_elastic_keras.data.sources.random_access",
    "TFRecordSource": "hvd_elastic_keras.data.sources.tfrecord",
    "TfdsSource": "hvd_elastic_keras.data.sources.tfds",
    "Trainer": "hvd_elastic_keras.api.trainer",
    "TrainingConfig": "hvd_elastic_keras.settings.training_config",
    "is_root": "hvd_elastic_keras.worker.turns",
    "read_predictions": "hvd_elastic_keras.common.predictions",
    "root_only": "hvd_elastic_keras.worker.turns",
    "run_function": "hvd_elastic_keras.cli.functions.run_function",
}


names_looked_up: set[str] = set()
"""Public names that the program has used: modules of this package import each other directly."""
_NEED_KERAS = ("ElasticCallback", "RootCallback", "Trainer")


def _tell_job_of_errors() -> None:
    """Makes an uncaught `ConfigurationError` in a worker's script end the whole job."""
    environment = importlib.import_module("hvd_elastic_keras.settings.env").worker_environment()
    if environment is not None:
        session = importlib.import_module("hvd_elastic_keras.worker.session_of_process")
        session.refuse_what_is_not_caught(environment)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        names_looked_up.add(name)
        _tell_job_of_errors()
    if name in _NEED_KERAS:
        importlib.import_module("hvd_elastic_keras.keras_internals.release").check_in_script()
        importlib.import_module("hvd_elastic_keras.state.keras_saving").install()
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
