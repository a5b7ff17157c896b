"""Loads a job's model module and its data, in workers and in the check before the job."""

from __future__ import annotations

from typing import Any

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.api.model_module import ModelModule
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.job_spec import JobSpec
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import DataLike, as_source, is_source, split_preprocess
from hvd_elastic_keras.step import deterministic_step

COMPARED_EXAMPLES = 32
"""Examples at the front of an epoch that must be the same whenever the dataset is read."""


def load_split(module: ModelModule, split: str) -> DataLike | None:
    """Returns the data of a split; None if there are none.

    The data do not depend on what this process has computed before.
    """
    keras.utils.set_random_seed(module.seed)
    return module.dataset(split)


def set_up() -> None:
    """Sets up TensorFlow as the job's options ask. Call it before everything else."""
    if env.run_options().deterministic:
        deterministic_step.enable_op_determinism()  # before the model computes anything


def load_module(spec: JobSpec) -> ModelModule:
    """Returns the module, with the values that its functions may ask for.

    Raises:
      ModelModuleError: the module does not keep its contract.
    """
    return ModelModule(
        spec.model,
        config=ml_collections.ConfigDict(spec.config),
        seed=spec.training.seed,
        data_dir=spec.data_dir,
    )


def check_reproducible(first: list[Any], second: list[Any], split: str) -> None:
    """Raises `DataError` if two loads of the same split begin differently."""
    for a, b in zip(first, second, strict=True):
        # NaN equals NaN here, whatever the dtype.
        if not (np.array_equal(a, b) or a.tobytes() == b.tobytes()):
            raise DataError(
                f'dataset(split="{split}") gives its examples in another order each time, so that '
                "a worker that joins later cannot continue. Seed every random part, for example "
                "shuffle(n, seed=seed + epoch) with `seed` and `epoch` as parameters of dataset(),"
                " or return arrays: they are shuffled for you."
            )


def is_dataset(data: DataLike) -> bool:
    """Returns whether the data are a `tf.data.Dataset`, alone or with a preprocessing function."""
    return isinstance(split_preprocess(data)[0], tf.data.Dataset)


def front(data: DataLike) -> list[Any]:
    """Returns the arrays of the first examples, in the order of the first epoch."""
    examples, _ = split_preprocess(data)
    if is_source(examples):
        source = as_source(data, seed=0, shuffle=True, name="the data")
        count = min(COMPARED_EXAMPLES, source.num_examples)
        partition = Partition(count, count, count)
        batch = next(source.batches(0, partition, Share(0, 1), 0))
        return [np.asarray(leaf) for leaf in tf.nest.flatten(batch, expand_composites=True)]
    if callable(examples) and not isinstance(examples, tf.data.Dataset):
        examples = examples(0)
    if isinstance(examples, tf.data.Dataset):
        first = examples.take(COMPARED_EXAMPLES).as_numpy_iterator()
        return [np.asarray(leaf) for example in first for leaf in tf.nest.flatten(example)]
    return [np.asarray(leaf[:COMPARED_EXAMPLES]) for leaf in tf.nest.flatten(examples)]
