"""Imports the packages of a worker one after the other, and prints how far it has come.

It prints a line of JSON when an import begins and another when it has succeeded. So a reader knows
which import was running if this process dies, as by an instruction that the processor lacks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError, in_one_line
from hvd_elastic_keras.settings import env

BEGINS, FOUND, FAILED = "begins", "found", "failed"


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return {"version": tf.__version__, "gpus": len(gpus)}


def _keras() -> dict[str, Any]:
    # Checked before Keras is imported: its backend may not be installed at all.
    env.refuse_other_backend()
    import keras

    from hvd_elastic_keras.keras_internals import release

    release.check()
    return {"version": keras.__version__}


def _horovod() -> dict[str, Any]:
    import horovod.tensorflow as hvd

    version = importlib.metadata.version("horovod")
    return {"version": version, "gloo": bool(hvd.gloo_built()), "nccl": bool(hvd.nccl_built())}


STAGES = {"TensorFlow": _tensorflow, "Keras": _keras, "Horovod": _horovod}


def _say(what: str, name: str, **more: Any) -> None:
    print(json.dumps({what: name, **more}), flush=True)


def main() -> int:
    """Runs all stages, up to the first that fails."""
    env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3", env.KERAS_BACKEND: env.BACKEND})
    for name, stage in STAGES.items():
        _say(BEGINS, name)
        try:
            _say(FOUND, name, **stage())
        except ConfigurationError as error:
            _say(FAILED, name, refusal=str(error))
            return 1
        except Exception as error:  # a broken installation may raise anything
            _say(FAILED, name, why=in_one_line(error))
            return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # taking TensorFlow apart takes seconds, and there is nothing to keep
