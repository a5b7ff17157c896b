"""A training loop as in Horovod's documentation, on a network of `timed_model.py`.

`horovodrun` starts it. It trains on the same examples, with the same optimizer, metrics and global
batch as a job of that model. It notes the time per step of each epoch in the same way.
"""

from __future__ import annotations

import os
import sys

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
import timed_model


def main() -> None:
    """Trains.

    The first argument is the number of epochs. The second one is the number of workers into which
    the global batch is divided.
    """
    epochs, parts = map(int, sys.argv[1:])
    timed_model.pin()
    hvd.init()
    make, steps = timed_model.NETWORKS[os.environ[timed_model.KIND]]
    model, optimizer = make(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()]

    dataset = tf.data.Dataset.from_tensor_slices(timed_model.dataset("train"))
    dataset = dataset.shard(hvd.size(), hvd.rank()).shuffle(10_000).repeat()
    dataset = dataset.batch(timed_model.BATCH_SIZE // parts).prefetch(tf.data.AUTOTUNE)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor, first: bool) -> None:
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = crossentropy(y, outputs)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        metrics[0].update_state(loss)
        metrics[1].update_state(y, outputs)
        if first:
            hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)
            hvd.broadcast_variables([v.value for v in optimizer.variables], root_rank=0)

    step_times = timed_model.StepTimes()
    batches = iter(dataset)
    step(*next(batches), True)
    for epoch in range(epochs):
        step_times.on_epoch_begin(epoch)
        for _ in range(steps):
            step(*next(batches), False)
        for metric in metrics:
            metric.result().numpy()
            metric.reset_state()
        step_times.on_epoch_end(epoch)


if __name__ == "__main__":
    main()
