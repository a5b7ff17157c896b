"""Checks that a worker has the GPUs that were asked for. If not, it does not train."""

from __future__ import annotations

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.worker.membership import Membership


def check_gpus(membership: Membership) -> None:
    """Checks that this process sees as many GPUs as each worker is to have.

    Raises:
      ConfigurationError: there are too few, and no worker trains yet.
      WorkerLeavingError: there are too few. The master has been told, and the others train on.
    """
    environment = membership.environment
    wanted = environment.options.with_script().gpus_per_worker if environment else 0
    seen = len(tf.config.list_physical_devices("GPU")) if wanted else 0
    if environment is None or seen >= wanted:
        return
    why = (
        f"a worker on {environment.hostname} sees {seen} GPUs, but --gpus_per_worker={wanted} was "
        "given"
    )
    worker = membership.worker
    if worker is not None and worker.others_train(worker.training + 1):
        worker.leave(why)
    raise ConfigurationError(
        f"{why[0].upper()}{why[1:]}. Is there one for each place of a worker on its host, and does "
        "TensorFlow use them there? Without the flag, workers train on what they find."
    )
