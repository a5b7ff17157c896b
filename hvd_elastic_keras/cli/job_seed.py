"""The seed of a job: all workers of a script draw the same random numbers.

Every worker runs the whole script, so data, weights and orders must be the same in all of them.
`install` seeds Python's `random`, NumPy, TensorFlow and Keras as `keras.utils.set_random_seed` does
on the first line of a script. A script that seeds them itself gets its own numbers.

The launcher chooses the seed once and keeps it in `job.json`.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvd_elastic_keras.common import files, patches

FORMAT_VERSION = 1
WHY = "generators without a seed draw from the job's seed"


def install(seed: int, *, is_drawn: bool) -> None:
    """Seeds this process: `random` at once, the other packages when they are imported.

    Args:
      is_drawn: whether nobody gave the seed.
    """
    random.seed(seed)
    patches.after_import(["numpy"], lambda: _seed_numpy(seed))
    patches.after_import(["tensorflow"], lambda: _seed_tensorflow(seed))
    patches.after_import(["tensorflow", "keras"], lambda: _seed_keras(seed, is_drawn))


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


def _seed_tensorflow(seed: int) -> None:
    import tensorflow as tf

    tf.random.set_seed(seed)


def _seed_keras(seed: int, is_drawn: bool) -> None:
    from hvd_elastic_keras.keras_internals.global_seed import JobSeed, note_job_seed

    note_job_seed(JobSeed(seed, is_drawn))


def choose(job_dir: Path, script: Sequence[str], given: int | None) -> int:
    """Returns the seed of a job of a script, and keeps it in the job directory.

    Args:
      given: the seed of the command line; None: the seed that the directory has from an earlier
        start, else a new one.
    """
    seed = given if given is not None else kept_in(job_dir)
    if seed is None:
        seed = secrets.randbelow(2**31)
    content = {"version": FORMAT_VERSION, "script": list(script), "seed": seed}
    files.write_secret(job_dir / files.JOB, f"{json.dumps(content, indent=2)}\n".encode())
    return seed


def kept_in(job_dir: Path) -> int | None:
    """Returns the seed of the job that was started in a directory; None if there is none."""
    try:
        seed = files.parse_json((job_dir / files.JOB).read_bytes())["seed"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return seed if isinstance(seed, int) else None
