"""Hooks of data and of callbacks: alone, they are called as often and in the order of plain Keras.

Also over a second `fit` with the same data, whose order may follow from how often they were called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

SIZE, BATCH = 30, 6
X = np.random.default_rng(0).normal(size=(SIZE, 2)).astype("float32")
Log = list[str]
HOOKS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)


class Data(keras.utils.PyDataset):
    """What it gives follows from how often its hooks have been called."""

    def __init__(self, name: str, log: Log, workers: int = 1) -> None:
        super().__init__(workers=workers)
        self._name, self._log = name, log
        self._order = np.arange(SIZE)
        self._random = np.random.default_rng(3)
        self._scale = 1.0

    @property
    def num_batches(self) -> int:
        """All full."""
        return SIZE // BATCH

    def __getitem__(self, index: int) -> Any:
        """A batch."""
        rows = X[self._order[index * BATCH : (index + 1) * BATCH]]
        return rows * self._scale, rows[:, :1]

    def on_epoch_begin(self) -> None:
        """Scales; not in threads, which Keras starts before, so that they may read earlier."""
        self._log.append(f"{self._name} begins")
        if self.workers == 1:
            self._scale *= 1.1

    def on_epoch_end(self) -> None:
        """Shuffles."""
        self._log.append(f"{self._name} ends")
        self._random.shuffle(self._order)


class Logging(keras.callbacks.Callback):
    """Writes down all hooks, and stops where it is told to."""

    def __init__(self, log: Log, stop_at: str = "") -> None:
        super().__init__()
        self._log, self._stop_at = log, stop_at


def _noting(name: str) -> Any:
    def hook(self: Any, *position: Any, logs: Any = None) -> None:
        numbers = [str(p) for p in position if isinstance(p, int)]
        called = " ".join([name, *numbers])
        self._log.append(called)
        if name == "on_epoch_begin":
            self.epoch = position[0]
        if f"{getattr(self, 'epoch', '')} {called}" == self._stop_at:
            self.model.stop_training = True

    return hook


for _name in HOOKS:
    setattr(Logging, _name, _noting(_name))


def tensors(log: Log, name: str) -> Any:
    """A dataset made by a generator function, which notes when it starts."""

    def batches() -> Iterator[Any]:
        log.append(f"{name} starts")
        for start in range(0, SIZE, BATCH):
            yield X[start : start + BATCH], X[start : start + BATCH, :1]

    spec = tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 1], tf.float32)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(SIZE // BATCH))


def shuffled(log: Log, name: str) -> Any:
    pairs = tf.data.Dataset.from_tensor_slices((X, X[:, :1]))
    return pairs.shuffle(SIZE, seed=4).batch(BATCH)


Make = Callable[[Log, str], Any]
Arguments = dict[str, Any]
FITS: dict[str, tuple[Make, Make | None, Arguments]] = {
    "two": (Data, Data, {}),
    "no validation": (Data, None, {}),
    "in threads": (lambda log, name: Data(name, log, 2), lambda log, name: Data(name, log, 2), {}),
    "one for both": (Data, lambda log, name: None, {}),
    "seldom": (Data, Data, {"validation_freq": [1, 3]}),
    "later first epoch": (Data, Data, {"initial_epoch": 1, "validation_freq": 2}),
    "some steps of a validation": (Data, Data, {"validation_steps": 2}),
    "all steps of a validation": (Data, Data, {"validation_steps": SIZE // BATCH}),
    "stops in an epoch": (Data, Data, {"stop_at": "1 on_train_batch_end 2"}),
    "stops with the last batch": (Data, Data, {"stop_at": "1 on_train_batch_end 4"}),
    "stops after an epoch": (Data, Data, {"stop_at": "1 on_epoch_end 1"}),
    "stops in a validation": (Data, Data, {"stop_at": "1 on_test_end"}),
    "shuffled by Keras": (Data, Data, {"shuffle": True}),
    "generator functions": (tensors, tensors, {}),
    "one shuffled dataset": (shuffled, lambda log, name: None, {}),
    "two shuffled datasets": (shuffled, shuffled, {}),
    "one, seldom": (shuffled, lambda log, name: None, {"validation_freq": [2, 3]}),
    "one, some steps": (
        *(shuffled, lambda log, name: None),
        {"steps_per_epoch": 3, "validation_steps": 2},
    ),
    "one, all steps": (
        *(shuffled, lambda log, name: None),
        {"steps_per_epoch": 5, "validation_steps": 5},
    ),
    "one that stops in an epoch": (
        *(shuffled, lambda log, name: None),
        {"stop_at": "1 on_train_batch_end 2"},
    ),
    "one that stops after an epoch": (
        *(shuffled, lambda log, name: None),
        {"stop_at": "1 on_epoch_end 1"},
    ),
}


def two_fits(name: str, elastic: bool) -> tuple[Log, list[Any]]:
    """The hooks that are called, and histories and weights."""
    keras.utils.set_random_seed(1)
    make, make_other, given = FITS[name]
    log: Log = []
    train = Data("training", log) if make is Data else make(log, "training")
    arguments = {"epochs": 3, "shuffle": False, **given}
    stop_at = arguments.pop("stop_at", "")
    if make_other is not None:
        other = Data("validation", log) if make_other is Data else make_other(log, "validation")
        arguments["validation_data"] = train if other is None else other
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    results: list[Any] = []
    for stop in (stop_at, ""):
        callbacks = [Logging(log, stop), *([ElasticCallback()] if elastic else [])]
        history = model.fit(train, callbacks=callbacks, verbose=0, **arguments)
        results += [*history.history.values(), *model.get_weights()]
    results.append(keras.random.normal((2,)))  # the script goes on as after plain `fit`
    return log, results


@pytest.mark.parametrize("name", FITS)
def test_they_are_called_as_often_and_in_the_order_of_plain_keras(name: str) -> None:
    expected, expected_results = two_fits(name, elastic=False)
    log, results = two_fits(name, elastic=True)
    assert len(expected) > 20
    # The first batch is read before the training begins, for what is tried out.
    starts = [[line for line in lines if line.endswith("starts")] for lines in (log, expected)]
    assert sorted(starts[0]) == sorted(starts[1])
    log, expected = ([c for c in lines if not c.endswith("starts")] for lines in (log, expected))
    assert "\n".join(log) == "\n".join(expected)
    for found, value in zip(results, expected_results, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
