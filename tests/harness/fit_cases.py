"""Trainings with `keras.Model.fit` whose results must not depend on the workers.

Each case combines several features of Keras, so that few jobs show all of them. Most have a
`FaultPoint` in the model; where XLA compiles the step, `FaultAtBatches` takes its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tests.harness import fault_model, faults
from tests.harness.fault_model import FaultPoint

layers = keras.layers
SIZE, BATCH = 96, 16
X = np.random.default_rng(0).normal(size=(SIZE, 6)).astype("float32")
LABELS = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
WEIGHTS = np.random.default_rng(1).random(SIZE).astype("float32")
CLASS_WEIGHT = {0: 2.0, 1: 0.5, 2: 1.0}
Arguments = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One script of a user's.

    Attributes:
      model: makes the compiled model.
      fits: arguments of one `fit` after the other, from a directory for files.
      plain: whether `fit` without `ElasticCallback` has the same result: not with batch
        normalisation, dropout or shuffled arrays, whose random numbers are others.
    """

    model: Callable[[], keras.Model]
    fits: tuple[Callable[[Path], Arguments], ...]
    plain: bool = True


class FaultAtBatches(keras.callbacks.Callback):
    """Lets the faults at "train" happen before a step, outside of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A moment at which a worker may be killed."""
        if hvd.is_initialized():
            faults.happen("train", hvd.rank(), hvd.size(), step=self.finished)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts; a joiner gets the number with the rest of the callback's state."""
        self.finished += 1


def sgd(**arguments: Any) -> keras.Optimizer:
    """Amplifies rounding as little as an optimizer can."""
    return keras.optimizers.SGD(**{"learning_rate": 0.1, "momentum": 0.9, **arguments})


def adam(**arguments: Any) -> keras.Optimizer:
    """Adam with a large epsilon: its quotient amplifies the rounding of small gradients."""
    return keras.optimizers.Adam(**{"learning_rate": 0.01, "epsilon": 1e-2, **arguments})


def classifier(*inner: keras.layers.Layer, **compile_arguments: Any) -> keras.Model:
    """A small network for `X` and `LABELS`."""
    model = keras.Sequential(
        [keras.Input((6,)), *inner, layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    compiled(model, **compile_arguments)
    return model


def compiled(model: keras.Model, **arguments: Any) -> None:
    """Compiles for `LABELS`."""
    defaults: Arguments = {
        "optimizer": sgd(),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**defaults, **arguments})


def arrays(**arguments: Any) -> Arguments:
    """`fit` on arrays, in their order."""
    return {"x": X, "y": LABELS, "batch_size": BATCH, "shuffle": False, **arguments}


def examples(targets: Any = LABELS) -> tf.data.Dataset:
    """Single examples."""
    return tf.data.Dataset.from_tensor_slices((X, targets))


# --- models ------------------------------------------------------------------------------


def random_layers() -> keras.Model:
    """Preprocessing, batch norm and dropout."""
    normalise = layers.Normalization()
    normalise.adapt(X)
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.8)
    batch_norm = layers.BatchNormalization(momentum=0.9)
    return classifier(
        *(normalise, batch_norm, FaultPoint(), layers.Dropout(0.3)),
        optimizer=sgd(learning_rate=decay, clipnorm=0.5),
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
    )


class TwoHeads(keras.Model):
    """Subclassed, with two outputs in a dict, and not built before `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = FaultPoint()
        self.hidden = layers.Dense(8, activation="tanh")
        self.heads = {"a": layers.Dense(3), "b": layers.Dense(1)}

    def call(self, x: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        """Both outputs."""
        hidden = self.hidden(self.fault(x, training=training))
        return {name: head(hidden) for name, head in self.heads.items()}


def two_heads() -> keras.Model:
    """Several losses and metrics."""
    model = TwoHeads()
    model.compile(
        sgd(),
        loss={"a": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mae"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["accuracy"], "b": ["mse", "mae"]},
    )
    return model


class OwnStep(keras.Model):
    """As in "Customizing what happens in fit": its own `train_step`, trackers and logs."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = FaultPoint()
        self.dense = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Logits."""
        return self.dense(self.fault(x, training=training))

    @property
    def metrics(self) -> list[keras.Metric]:
        """Those that `fit` resets."""
        return [self.tracker, self.mae]

    def train_step(self, data: Any) -> Arguments:
        """Like Keras's own, with the loss of the batch in the logs too."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {**self._results(loss, y, y_pred), "loss_now": loss}

    def test_step(self, data: Any) -> Arguments:
        """The same metrics."""
        x, y = data
        y_pred = self(x, training=False)
        return self._results(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)

    def _results(self, loss: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor) -> Arguments:
        self.tracker.update_state(loss, sample_weight=tf.shape(y)[0])
        self.mae.update_state(tf.one_hot(y, 3), y_pred)
        return {m.name: m.result() for m in self.metrics}


def own_step() -> keras.Model:
    """Batch hooks are called once per three steps."""
    model = OwnStep()
    compiled(model, optimizer=sgd(), metrics=None, steps_per_execution=3)
    return model


def with_xla() -> keras.Model:
    """XLA, accumulated gradients, and averages of the weights that take their place."""
    averaging = adam(
        gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4
    )
    return classifier(optimizer=averaging, jit_compile=True)


def half_precision() -> keras.Model:
    """Starts with a loss scale that overflows, so that the first steps are left out."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        scaled = keras.optimizers.LossScaleOptimizer(
            sgd(), initial_scale=2.0**21, dynamic_growth_steps=4
        )
        return classifier(FaultPoint(), optimizer=scaled)
    finally:
        keras.config.set_dtype_policy(before)


class Largest(keras.Metric):
    """The largest logit so far: a state that does not add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes a batch in."""
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        """The largest."""
        return self.value.value


# --- data and callbacks ------------------------------------------------------------------


class Batches(keras.utils.PyDataset):
    """Another order in every epoch, from `on_epoch_end`, as users write it."""

    def __init__(self) -> None:
        super().__init__(workers=2)
        self._order = np.arange(SIZE)
        self._random = np.random.default_rng(3)

    @property
    def num_batches(self) -> int:
        """The last one is smaller."""
        return -(-len(self._order) // 20)

    def __getitem__(self, index: int) -> Any:
        """One batch of 20."""
        part = self._order[index * 20 : (index + 1) * 20]
        return X[part], LABELS[part]

    def on_epoch_end(self) -> None:
        """Shuffles."""
        self._random.shuffle(self._order)


class StopsAt(keras.callbacks.Callback):
    """Ends the training within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """In the second epoch, after the third step."""
        if int(self.model.optimizer.iterations) == 9:
            self.model.stop_training = True


def _fit_on_weighted_arrays(_: Path) -> Arguments:
    stop = keras.callbacks.EarlyStopping(min_delta=10.0, patience=3, restore_best_weights=True)
    return arrays(
        shuffle=True,
        sample_weight=WEIGHTS,
        validation_split=0.25,
        epochs=6,
        callbacks=[stop],
    )


def _fit_on_unknown_length(_: Path) -> Arguments:
    both = examples({"a": LABELS, "b": X[:, :1]})
    data = both.shuffle(SIZE, seed=7).filter(lambda x, y: x[2] > -1).batch(BATCH)
    change = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    halve = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10.0)
    validation = both.filter(lambda x, y: x[3] > 0).batch(7)
    return {
        "x": data,
        "epochs": 4,
        "validation_data": validation,
        "callbacks": [change, halve],
    }


def _fit_on_py_dataset(_: Path) -> Arguments:
    return {"x": Batches(), "shuffle": False, "epochs": 4, "validation_data": Batches()}


def _fit_on_infinite_dataset(_: Path) -> Arguments:
    data = examples().shuffle(SIZE, seed=3).repeat().batch(BATCH)
    return {
        "x": data,
        "steps_per_epoch": 5,
        "epochs": 4,
        "validation_data": examples().batch(10).repeat(),
        "validation_steps": 3,
        "callbacks": [FaultAtBatches()],
    }


def _fit_eagerly(_: Path) -> Arguments:
    return arrays(
        class_weight=CLASS_WEIGHT,
        initial_epoch=2,
        epochs=6,
        validation_data=(X[:50], LABELS[:50], WEIGHTS[:50]),
        validation_freq=2,
        validation_batch_size=20,
    )


def _fit_on_dataset(_: Path) -> Arguments:
    return {"x": examples().shuffle(SIZE, seed=5).batch(BATCH), "epochs": 3}


def _fit_with_validation(_: Path) -> Arguments:
    return arrays(epochs=3, validation_data=(X[:40], LABELS[:40]))


def _fit_accumulating(_: Path) -> Arguments:
    return arrays(epochs=3)  # 18 steps: the last ones are accumulated, but not applied


def _fit_until_stopped(_: Path) -> Arguments:
    return arrays(epochs=50, validation_data=(X[:40], LABELS[:40]), callbacks=[StopsAt()])


def _fit_with_writers(directory: Path) -> Arguments:
    c = keras.callbacks
    notes = directory / f"{fault_model.worker_id()}.txt"

    def note(epoch: int, logs: Any) -> None:
        with notes.open("a") as file:
            file.write(f"{epoch} ")

    best = directory / "best-{epoch:02d}.weights.h5"
    writers = [
        c.CSVLogger(str(directory / "log.csv")),
        c.TensorBoard(str(directory / "board"), update_freq=4),
        c.ModelCheckpoint(str(best), save_best_only=True, save_weights_only=True),
        c.ModelCheckpoint(str(directory / "every-{epoch:02d}-{batch:02d}.keras"), save_freq=5),
        c.LambdaCallback(on_epoch_begin=note, on_train_begin=lambda logs: None),
    ]
    return arrays(epochs=5, validation_data=(X[:40], LABELS[:40]), callbacks=writers)


def _fit_with_backup(directory: Path) -> Arguments:
    backup = keras.callbacks.BackupAndRestore(str(directory / "backup"))
    return arrays(shuffle=True, epochs=4, callbacks=[backup])


def _with_fault_point(**arguments: Any) -> Callable[[], keras.Model]:
    return lambda: classifier(FaultPoint(), **arguments)


CASES = {
    "weighted arrays": Case(random_layers, (_fit_on_weighted_arrays,), plain=False),
    # Keras starts one step too many at the end of such data.
    "unknown length": Case(two_heads, (_fit_on_unknown_length,), plain=False),
    "PyDataset": Case(own_step, (_fit_on_py_dataset,)),
    "infinite dataset": Case(with_xla, (_fit_on_infinite_dataset,)),
    "eager": Case(_with_fault_point(run_eagerly=True), (_fit_eagerly,)),
    "mixed_float16": Case(half_precision, (_fit_with_validation,), plain=False),
    "two fits": Case(
        _with_fault_point(jit_compile=False), (_fit_with_validation, _fit_on_dataset), plain=False
    ),
    "stops": Case(_with_fault_point(), (_fit_until_stopped,)),
    "largest": Case(
        lambda: classifier(FaultPoint(), metrics=[Largest(), "accuracy"]), (_fit_with_validation,)
    ),
    "accumulation": Case(
        _with_fault_point(optimizer=sgd(gradient_accumulation_steps=4)), (_fit_accumulating,)
    ),
    "writers": Case(_with_fault_point(), (_fit_with_writers,)),
    "backup": Case(_with_fault_point(), (_fit_with_backup,), plain=False),
}
