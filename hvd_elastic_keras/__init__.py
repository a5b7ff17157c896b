"""Elastic, fault-tolerant, synchronous data-parallel training for Keras 3 with Horovod.

The names below are loaded on first use, so that importing the package (and `--help` of the
command lines) does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvd_elastic_keras._version import __version__

if TYPE_CHECKING:
    from hvd_elastic_keras.config import TrainingConfig
    from hvd_elastic_keras.data.cached import CachedSource
    from hvd_elastic_keras.data.random_access import Source
    from hvd_elastic_keras.data.tfds import TfdsSource
    from hvd_elastic_keras.data.tfrecord import TFRecordSource
    from hvd_elastic_keras.errors import ElasticError
    from hvd_elastic_keras.training.callback import ElasticCallback
    from hvd_elastic_keras.training.trainer import Trainer

__all__ = [
    "CachedSource",
    "ElasticCallback",
    "ElasticError",
    "Source",
    "TFRecordSource",
    "TfdsSource",
    "Trainer",
    "TrainingConfig",
    "__version__",
]

_LAZY = {
    "CachedSource": "hvd_elastic_keras.data.cached",
    "ElasticCallback": "hvd_elastic_keras.training.callback",
    "ElasticError": "hvd_elastic_keras.errors",
    "Source": "hvd_elastic_keras.data.random_access",
    "TFRecordSource": "hvd_elastic_keras.data.tfrecord",
    "TfdsSource": "hvd_elastic_keras.data.tfds",
    "Trainer": "hvd_elastic_keras.training.trainer",
    "TrainingConfig": "hvd_elastic_keras.config",
}


_NEED_KERAS = ("ElasticCallback", "Trainer")


def _tell_job_of_errors() -> None:
    """In a worker's script, an error of configuration ends the job, wherever it is raised."""
    environment = importlib.import_module("hvd_elastic_keras.env").worker_environment()
    if environment is not None:
        session = importlib.import_module("hvd_elastic_keras.worker.session")
        session.refuse_what_is_not_caught(environment)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        _tell_job_of_errors()
    if name in _NEED_KERAS:
        importlib.import_module("hvd_elastic_keras.training.keras_release").check_in_script()
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
