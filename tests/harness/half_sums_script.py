"""Workers that sum numbers sent in 16 bits.

    half_sums_script.py OUTPUT

Each worker leaves its sums in `OUTPUT/<rank>.npz`, by the name of the format.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras.step.partition.horovod_collectives import HALF_DTYPES, summed_in_half

SHAPES = [(3, 5), (), (7,)]


def numbers_of(rank: int) -> list[Any]:
    """Returns float32 numbers that 16 bits cannot hold exactly."""
    random = np.random.default_rng(rank)
    return [random.normal(size=shape).astype(np.float32) for shape in SHAPES]


def main(output: Path) -> None:
    """Sums the numbers of all workers."""
    found = {}
    for name, half in HALF_DTYPES.items():
        reduce = tf.function(summed_in_half, autograph=False)
        numbers = [tf.constant(n) for n in numbers_of(hvd.rank())]
        sums = reduce(numbers, half, name)
        found[name] = np.concatenate([np.ravel(s) for s in sums])
    np.savez(output / f"{hvd.rank()}.npz", **found)


if __name__ == "__main__":
    hvd.init()
    counter = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([counter])
    hvd.elastic.run(lambda _: main(Path(sys.argv[1])))(state)
