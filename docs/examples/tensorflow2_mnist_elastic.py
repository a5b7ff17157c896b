"""A training loop of its own, made elastic: Horovod's example of the same name, on the digits.

Alone, and with workers that may come, go and be killed at any moment:

    python docs/examples/tensorflow2_mnist_elastic.py
    python -m hvd_elastic_keras.run --num_workers=2 docs/examples/tensorflow2_mnist_elastic.py

Against Elastic Horovod, the import has changed. The rest is Horovod's interface.
"""

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd  # was: import horovod.tensorflow as hvd
from model_zoo import digits

GLOBAL_BATCH = 128
STEPS = 200
LEARNING_RATE = 0.05

keras.utils.set_random_seed(0)
hvd.init()

images, labels = digits.load("train")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")


def share_of_batch(step):
    """This worker's part of the batch of a step: the same batch, however many workers there are."""
    batch = np.random.default_rng(step).permutation(len(labels))[:GLOBAL_BATCH]
    return batch[hvd.rank() :: hvd.size()]


@tf.function(
    input_signature=[  # one graph for parts of any size
        tf.TensorSpec((None, 8, 8, 1), tf.float32),
        tf.TensorSpec((None,), tf.int64),
    ]
)
def training_step(x, y):
    with tf.GradientTape() as tape:
        # A share of the mean over the whole batch: right also if the parts differ in size.
        loss = loss_of(y, model(x, training=True)) / GLOBAL_BATCH
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return hvd.allreduce(loss, op=hvd.Sum, name="loss")


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)

# Traces the step before this worker joins, so that nobody waits for that; then undoes its effect.
first = share_of_batch(0)
training_step(images[first], labels[first])
state.restore()


@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        mine = share_of_batch(state.step)
        loss = training_step(images[mine], labels[mine])
        state.step += 1
        if state.step % 20 == 0 and hvd.rank() == 0:
            print(f"step {state.step}/{STEPS}  loss {float(loss):.4f}  {hvd.size()} workers")
        state.commit()


# `register_reset_callbacks` is not needed here: as the batch stays the same, so does the learning
# rate. A loop whose batch grows with the workers would scale it there.
train(state)

if hvd.rank() == 0:
    predicted = np.argmax(model.predict(images, verbose=0), axis=-1)
    print(f"accuracy {np.mean(predicted == labels):.4f}")
