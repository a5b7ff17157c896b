"""Workers that take partitioned steps with Horovod.

    partitioned_script.py OUTPUT SHARES NAME...

SHARES is JSON: for each step, its rows by rank. Each worker leaves its results for all models in
`OUTPUT/<rank>.npz`. It maps "name/number of the variable" to the value.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.horovod_collectives import HorovodCollectives
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.partitioned_models import MODELS, ROWS, Made


def captured_of(made: Made) -> CapturedStep:
    """Returns the captured step of a model, with all variables."""
    model, batch = made
    if model._compile_loss is not None:
        model._symbolic_build(data_batch=batch)
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    return capture(model.train_step, spec)


def taking(captured: CapturedStep) -> Any:
    """Returns a function that takes a step together with the other workers.

    Its arguments are the first row, whether there are any rows, and the rows.
    """
    analysis = analysed(captured, ROWS)

    def take(low: Any, has_rows: Any, *rows: Any) -> None:
        is_first = tf.logical_and(low == 0, has_rows)
        part = Part(low, tf.shape(rows[0])[0], tf.constant(ROWS), is_first)
        step = PartialStep(
            captured, analysis, part, WorkerCollectives(HorovodCollectives(), has_rows)
        )
        outputs = step.compute(rows)
        with tf.control_dependencies([*outputs, *step.variables.values.values()]):
            for name, variable in captured.variables.items():
                variable.assign(step.variables.values[name])

    spec = [tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)]
    spec += [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in captured.batch]
    return tf.function(take, input_signature=spec, autograph=False)


def main(output: Path, steps: list[list[int]], names: list[str]) -> None:
    """Takes the steps of each model."""
    rank, found = hvd.rank(), {}
    for name in names:
        keras.utils.set_random_seed(1)
        made = MODELS[name]()
        captured = captured_of(made)
        take = taking(captured)
        for shares in steps:
            low, size = sum(shares[:rank]), shares[rank]
            begin, end = (low, low + size) if size else (0, 1)  # without rows, any rows will do
            rows = [tf.constant(b[begin:end]) for b in made[1]]
            take(tf.constant(begin), tf.constant(size > 0), *rows)
        found |= {f"{name}/{i}": v.numpy() for i, v in enumerate(captured.variables.values())}
    np.savez(output / f"{rank}.npz", **found)


if __name__ == "__main__":
    hvd.init()
    counter = tf.Variable(0.0)
    state = hvd.elastic.TensorFlowState([counter])
    arguments = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    hvd.elastic.run(lambda _: main(*arguments))(state)
