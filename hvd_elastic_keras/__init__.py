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
    from hvd_elastic_keras.errors import ElasticError
    from hvd_elastic_keras.training.trainer import Trainer

__all__ = ["ElasticError", "Trainer", "TrainingConfig", "__version__"]

_LAZY = {
    "ElasticError": "hvd_elastic_keras.errors",
    "Trainer": "hvd_elastic_keras.training.trainer",
    "TrainingConfig": "hvd_elastic_keras.config",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
