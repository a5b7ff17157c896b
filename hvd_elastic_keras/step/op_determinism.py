"""Settings of TensorFlow with which an operation gives the same bits in every process."""

from __future__ import annotations

import os

import tensorflow as tf

from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import ConfigurationError


def enable() -> None:
    """Fixes the number of threads of an operation and turns TensorFlow's op determinism on.

    The number of threads that share an operation decides the order of its additions. So the job
    sets this number (`RunOptions.deterministic_threads`), not the machine. Both settings hold for
    the whole process and cannot be undone. It is best to call this before TensorFlow
    computes anything.

    Raises:
      ConfigurationError: TensorFlow has started already, with another number of threads.
    """
    wanted = env.run_options().deterministic_threads
    if tf.config.threading.get_intra_op_parallelism_threads() != wanted:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(wanted)
        except RuntimeError as error:
            _check_threads(wanted, error)
    tf.config.experimental.enable_op_determinism()


def _check_threads(wanted: int, error: RuntimeError) -> None:
    """Raises if TensorFlow has started with another number of threads."""
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    started_with = configured or env.intra_op_threads() or os.cpu_count()
    if started_with != wanted:
        raise ConfigurationError(
            f"TensorFlow has started with {started_with} threads per operation, but "
            f"deterministic training needs {wanted}: the order of additions, and so the bits of "
            f"the weights, depend on it. Set TF_NUM_INTRAOP_THREADS={wanted} in the environment, "
            "as `python -m hvd_elastic_keras.run --deterministic` does, or call "
            f"tf.config.threading.set_intra_op_parallelism_threads({wanted}) at the top of the "
            "script."
        ) from error
