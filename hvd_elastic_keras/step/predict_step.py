"""The step of a prediction job: this worker's outputs go to files, then all workers agree to go on.

Nothing is summed. The one collective of a step carries the flag "membership change pending", and
shows that the parts of all workers are on disk. The files of a step do not depend on which worker
writes them (`common/predictions.py`). So a step that has failed in the middle is taken again,
without the parts that are already on disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.predictions import Array, PartFiles
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals.traced_graphs import directly
from hvd_elastic_keras.step.late_step import Arrive
from hvd_elastic_keras.step.step_result import StepResult
from hvd_elastic_keras.step.world import World


class Predictor:
    """Computes a model's outputs with its own `predict_step`, as `keras.Model.predict` does.

    Args:
      model: a model; it need not be compiled.
      layout: the form of batches.
    """

    def __init__(self, model: keras.Model, layout: Layout) -> None:
        self._model = model
        self._layout = layout
        self._compute: Callable[[Any], Any] = self._outputs
        if not model.run_eagerly:
            function = tf.function(
                self._outputs,
                input_signature=[layout.flat_spec],
                autograph=False,
                jit_compile=bool(model.jit_compile) or None,
            )
            self._compute = directly(function)

    def eagerly(self, batch: structure.Structure) -> Any:
        """Returns the outputs, computed without a graph. Makes the model's variables if needed."""
        return self._outputs(self._layout.flatten(batch))

    def __call__(self, batch: structure.Structure) -> list[Array]:
        """Returns the arrays of the outputs, each of shape [examples, …].

        Raises:
          DataError: an output is not an array of numbers.
        """
        outputs = self._compute(self._layout.flatten(batch))
        return [as_array(leaf) for leaf in tf.nest.flatten(outputs)]

    def _outputs(self, flat: Any) -> Any:
        return self._model.predict_step(self._layout.pack(flat))


def as_array(output: Any) -> Array:
    """Converts an output of a model to a NumPy array.

    Raises:
      DataError: the output is not an array of numbers, or is a single number.
    """
    kind = type(output).__name__
    if isinstance(output, tf.Tensor | np.ndarray):
        tensor = tf.convert_to_tensor(output)
        if tensor.dtype == tf.bfloat16:
            tensor = tf.cast(tensor, tf.float32)  # NumPy has no such type
        array: Array = tensor.numpy()
        if array.dtype != object and array.ndim:
            return array
        kind = f"{tensor.dtype.name} of shape {tuple(array.shape)}"
    raise DataError(
        f"predict_step returned {kind}, expected arrays of numbers whose first dimension counts "
        "the examples, in tuples, lists or dicts. Change what it returns."
    )


class PredictStep:
    """Writes this worker's part of a step, and agrees with all others that it is done.

    Args:
      any_true: a collective that returns whether a flag is true on any worker.
    """

    calls_python = False

    def __init__(
        self,
        predictor: Predictor,
        parts: PartFiles,
        world: World,
        any_true: Callable[[bool, str], bool],
    ) -> None:
        self._predictor = predictor
        self._parts = parts
        self._world = world
        self._any_true = any_true

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Arrive | None = None
    ) -> StepResult:
        """Takes the step together with all workers; see `PartitionedStep`.

        Ignores `arrive`, since no worker is late here.

        Raises:
          tf.errors.OpError: the collective failed; what this worker has written stays.
          DataError: outputs are not one row for each example.
        """
        part = batch.part
        for low, high in itertools.pairwise(part.offsets.tolist()):
            examples = (part.start + low, part.start + high)
            if high > low and not self._parts.has(examples):
                outputs = self._predictor(structure.cut(batch.data, low, high))
                self._parts.write(examples, outputs)
        self._world.computed.assign(step)
        change_pending = bool(self._world.change_pending.numpy() > 0)
        return StepResult({}, self._any_true(change_pending, "elastic_predict_step"))
