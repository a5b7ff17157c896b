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

import functools
import random
import sys
import zlib
from collections import Counter
from typing import Any, ClassVar

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.settings.job_options import JobSeed

WHY = "generators without a seed draw from the job's seed"


def install(seed: JobSeed) -> None:
    """Seeds this process: `random` at once, the other packages when they are imported."""
    random.seed(seed.number)
    _note_own_seeds()
    sys.meta_path.insert(0, _BeforeImport)
    for package in _BeforeImport.states:
        patches.after_import([package], functools.partial(_BeforeImport.restore, package))
    patches.after_import(["numpy"], lambda: _seed_numpy(seed.number))
    patches.after_import(["tensorflow"], lambda: _seed_tensorflow(seed))
    patches.after_import(["tensorflow", "keras"], lambda: _seed_keras(seed))


def _note_own_seeds() -> None:
    """Leaves the state to imports once the script has seeded it: as in plain Python, they draw."""
    original = random.seed

    @functools.wraps(original)
    def seed(*arguments: Any, **named: Any) -> None:
        _BeforeImport.is_of_job = False
        original(*arguments, **named)

    patches.install(random, "seed", seed, WHY)


def _seed_numpy(job_seed: int) -> None:
    import numpy as np

    np.random.seed(job_seed)
    original = np.random.default_rng
    made: Counter[str] = Counter()

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> np.random.Generator:
        if seed is not None:
            return original(seed)
        # Counted by module: what one module makes does not depend on what others make.
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        key = (zlib.crc32(caller.encode()), made[caller])
        made[caller] += 1
        return original(np.random.SeedSequence(job_seed, spawn_key=key))

    patches.install(np.random, "default_rng", default_rng, WHY)


class _BeforeImport:
    """Keeps the state of Python's `random`, from which imports of TensorFlow and Keras draw.

    Python asks the entries of `sys.meta_path` for each module that is imported.
    """

    is_of_job = True
    """Whether the state is the job's, which the script has not seeded."""
    states: ClassVar[dict[str, Any]] = dict.fromkeys(("tensorflow", "keras"))
    """The state before the import of each package."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        """Notes the state when a package is about to be imported; finds no module."""
        if name in cls.states:
            cls.states[name] = random.getstate()

    @classmethod
    def restore(cls, name: str) -> None:
        """Restores the state; called when the package has been imported."""
        if cls.is_of_job and cls.states[name] is not None:
            random.setstate(cls.states[name])


def _seed_tensorflow(seed: JobSeed) -> None:
    import tensorflow as tf

    from hvd_elastic_keras.keras_internals.tensorflow_names import draw_unseeded_from

    if seed.is_drawn:
        draw_unseeded_from(seed.number)
    else:
        tf.random.set_seed(seed.number)


def _seed_keras(seed: JobSeed) -> None:
    from hvd_elastic_keras.keras_internals.global_seed import note_job_seed

    note_job_seed(seed)
