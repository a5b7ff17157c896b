"""The seed of a job: all workers of a script draw the same random numbers.

Every worker runs the whole script, so data, weights and orders must be the same in all of them.
`install` seeds Python's `random`, NumPy, TensorFlow and Keras before the first line of a script. A
script that seeds them itself gets its own numbers.

A seed that was given (`--seed`) acts as `keras.utils.set_random_seed` on the first line would.
Without one, the launcher draws a seed and keeps it in `job.json`. It only replaces chance: what
has a seed of its own, such as `shuffle(n, seed=1)`, gives the same as without a job, and arrays are
shuffled anew in each epoch, as Keras does without a seed.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.options import JobSeed

WHY = "generators without a seed draw from the job's seed"


def install(seed: JobSeed) -> None:
    """Seeds this process: `random` at once, the other packages when they are imported."""
    random.seed(seed.number)
    sys.meta_path.insert(0, _BeforeTensorFlow)
    patches.after_import(["numpy"], lambda: _seed_numpy(seed.number))
    patches.after_import(["tensorflow"], lambda: _seed_tensorflow(seed))
    patches.after_import(["tensorflow", "keras"], lambda: _seed_keras(seed))


def _seed_numpy(seed: int) -> None:
    import numpy as np

    np.random.seed(seed)
    original = np.random.default_rng
    made = np.random.SeedSequence(seed)

    def default_rng(seed: Any = None) -> np.random.Generator:
        """Makes a generator; without a seed, from the next child of the job's seed."""
        return original(made.spawn(1)[0] if seed is None else seed)

    default_rng.__doc__ = original.__doc__
    patches.install(np.random, "default_rng", default_rng, WHY)


class _BeforeTensorFlow:
    """Keeps the state of Python's `random`, from which the import of TensorFlow draws numbers.

    Python asks the entries of `sys.meta_path` for each module that is imported.
    """

    state: Any = None

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        """Notes the state when TensorFlow is about to be imported; finds no module."""
        if name == "tensorflow":
            cls.state = random.getstate()

    @classmethod
    def restore(cls) -> None:
        """Restores the state; called when TensorFlow has been imported."""
        if cls.state is not None:
            random.setstate(cls.state)


def _seed_tensorflow(seed: JobSeed) -> None:
    import tensorflow as tf

    _BeforeTensorFlow.restore()
    from hvd_elastic_keras.keras_internals.tensorflow_names import draw_unseeded_from

    if seed.is_drawn:
        draw_unseeded_from(seed.number)
    else:
        tf.random.set_seed(seed.number)


def _seed_keras(seed: JobSeed) -> None:
    from hvd_elastic_keras.keras_internals.global_seed import note_job_seed

    note_job_seed(seed)
