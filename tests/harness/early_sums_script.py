"""A step whose gradients travel in parts, on one thread: says what is begun in which order."""

from __future__ import annotations

import os
from typing import Any

os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.sources.source import as_source
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.step.compiled_steps import compiled_step
from hvd_elastic_keras.step.partition import parts
from hvd_elastic_keras.step.partition.horovod_collectives import HorovodCollectives
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.horovod_runtime import Communicator

SIZE = 256
parts.LEAST_BYTES = 1


def told(what: str, value: tf.Tensor) -> tf.Tensor:
    """The value; says when it was there."""

    def tell(value: Any) -> Any:
        print(what, flush=True)
        return value

    # Not stateful: else nothing of what is computed with it leaves a function before it.
    found = tf.numpy_function(tell, [value], value.dtype, stateful=False)
    return tf.ensure_shape(found, value.shape)


class Tells(keras.layers.Layer):
    """Tells when the backward pass has come so far."""

    def call(self, x: Any) -> Any:
        """The input as it is."""

        @tf.custom_gradient
        def pass_on(x: Any) -> Any:
            return tf.identity(x), lambda upstream: told(f"backward {self.name}", upstream)

        return pass_on(x)


def main() -> None:
    """Takes the step twice."""
    summed = HorovodCollectives.summed

    def told_and_summed(
        collectives: HorovodCollectives, tensors: list[tf.Tensor], name: str, **options: Any
    ) -> list[tf.Tensor]:
        with tf.control_dependencies(tensors):
            first = told(f"send {name}", tensors[0])
        return summed(collectives, [first, *tensors[1:]], name, **options)

    HorovodCollectives.summed = told_and_summed  # type: ignore[method-assign]
    layers = [keras.layers.Dense(SIZE), Tells(name="first"), keras.layers.Dense(SIZE)]
    model = keras.Sequential([keras.Input((SIZE,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    x = np.ones((64, SIZE), np.float32)
    source = Pipeline(as_source((x, x[:, :1]), seed=0, shuffle=False, name="x"), 64, 16)
    communicator = Communicator("lo", "localhost", 30, master=None)
    communicator.start_alone()
    with communicator.tracing():
        options = StepOptions(together=None)
        made = compiled_step(model, variables_of(model), source, train=True, options=options)
        (batch,) = source.batches(0, Share(0, 4), 0)
        world_of_process().enter_round(0, 2)  # as if there were others
        for _ in range(2):
            print("begin", flush=True)
            made(batch, 0)
    communicator.shut_down()


if __name__ == "__main__":
    main()
