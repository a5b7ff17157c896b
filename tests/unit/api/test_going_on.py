"""A training that goes on from a checkpoint, alone: as if it had never ended, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api import model_job
from hvd_elastic_keras.audit import ledger_file, verdict
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.state.parts import DataIdentity

SIZE, BATCH = 60, 8
STEPS = 8
"""Of an epoch; the last one is smaller."""
X = np.random.default_rng(0).normal(size=(SIZE, 4)).astype("float32")
Y = X @ np.arange(4, dtype="float32")[:, None]


def dataset(size: int = SIZE) -> Any:
    return tf.data.Dataset.from_tensor_slices((X[:size], Y[:size])).shuffle(SIZE, seed=3)


def uncounted() -> Any:
    return dataset().filter(lambda x, y: True)


class Hooks(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("begin", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("end", epoch))


def train(job_dir: Path, data: Any, hooks: Sequence[Any] = (), **options: Any) -> Any:
    """The model after a training, as a process of its own would see it."""
    keras.utils.set_random_seed(1)
    validation = options.pop("validation", None)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    config = TrainingConfig(global_batch_size=BATCH, micro_batch_size=4, audit=True, **options)
    Trainer(
        model,
        data() if callable(data) else data,
        validation=validation,
        config=config,
        callbacks=hooks,
        job_dir=job_dir,
    ).fit()
    return model


def verdicts(job_dir: Path) -> list[str]:
    directory = next(job_dir.rglob("ledger"))
    return [
        verdict.judge(ledger_file.LinesOf(path)).verdict
        for path in ledger_file.epochs_in(directory)
    ]


EXACT = "every example exactly once"


@pytest.mark.parametrize("data", [dataset, uncounted, (X, Y)])
def test_two_and_two_epochs_are_four(data: Any, tmp_path: Path) -> None:
    expected = train(tmp_path / "one", data, epochs=4)
    train(tmp_path / "two", data, epochs=2)
    found = train(tmp_path / "two", data, epochs=4)
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert verdicts(tmp_path / "two") == [EXACT] * 4


@pytest.mark.parametrize("data", [dataset, (X, Y)])
def test_an_epoch_that_steps_have_cut_off_is_finished_by_a_longer_run(
    data: Any, tmp_path: Path
) -> None:
    expected = train(tmp_path / "one", data, epochs=4)
    steps = STEPS + 3
    first, second = Hooks(), Hooks()
    train(tmp_path / "two", data, [first], steps=steps, epochs=None)
    assert verdicts(tmp_path / "two") == [
        EXACT,
        "no example twice; the epoch ended before its data",
    ]
    found = train(tmp_path / "two", data, [second], epochs=4)
    assert int(found.optimizer.iterations) == 4 * STEPS
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert verdicts(tmp_path / "two") == [EXACT] * 4
    assert first.calls == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    # What the second one remembers begins with what the first one has seen. Epoch 1 has begun then.
    following = [(hook, epoch) for epoch in (2, 3) for hook in ("begin", "end")]
    assert second.calls == [*first.calls, ("end", 1), *following]


def test_validation_may_come_and_go_but_not_change(tmp_path: Path) -> None:
    train(tmp_path, (X, Y), epochs=1)
    train(tmp_path, (X, Y), epochs=2, validation=(X[:20], Y[:20]))
    with pytest.raises(DataError, match="The validation data have 17 examples, but had 20 when"):
        train(tmp_path, (X, Y), epochs=3, validation=(X[:17], Y[:17]))
    train(tmp_path, (X, Y), epochs=3)
    assert verdicts(tmp_path) == [EXACT] * 3


def test_data_that_share_a_shuffle_are_refused(tmp_path: Path) -> None:
    whole = dataset()
    with pytest.raises(DataError, match="examples move from one to the other between epochs"):
        train(tmp_path, whole.take(40), epochs=1, validation=whole.skip(40))


class Sized:
    """An input of so many batches."""

    num_examples, ends_unannounced = None, False

    def __init__(self, batches_per_pass: int | None) -> None:
        self.batches_per_pass = batches_per_pass

    def first_batch(self) -> Any:
        return np.arange(8)


def test_data_of_another_size_are_refused() -> None:
    def data_of(*batches: int | None) -> DataIdentity:
        inputs: Any = [Sized(count) for count in batches]
        return DataIdentity(inputs)

    checkpoint = Path("step-8")
    with pytest.raises(DataError, match="training data have 10 batches, but had 20 when step-8"):
        data_of(10).restore(data_of(20).state(), checkpoint)
    with pytest.raises(DataError, match="validation data have 3 batches in this worker, but 4 in"):
        data_of(10, 3).restore(data_of(10, 4).state(), None)
    with pytest.raises(DataError, match="Some workers have validation data and others have none"):
        data_of(10).restore(data_of(10, 4).state(), None)


def test_a_trainer_may_train_again() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = Trainer(model, uncounted(), config=TrainingConfig(global_batch_size=BATCH, epochs=2))
    for _ in range(2):  # although the first passes of this dataset are gone
        trainer.fit()
    assert int(model.optimizer.iterations) == 4 * STEPS


MODULE = """
import keras, numpy as np, tensorflow as tf

def model():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    return network

def dataset(split):
    x = tf.data.Dataset.from_tensor_slices(np.arange(400, dtype="float32").reshape(100, 4))
    data = x.map(lambda x: (x, x[:1])){change}
    return data if split == "train" else None
"""


@pytest.mark.parametrize(
    "change",
    [
        ".shuffle(100, seed=3, reshuffle_each_iteration=False)",
        ".shuffle(100, seed=3)",
        ".shuffle(100)",  # from the job's seed
        ".shuffle(100, seed=3).filter(lambda x, y: True)",  # has to be counted
    ],
)
def test_a_shuffled_dataset_passes_the_check(change: str, tmp_path: Path) -> None:
    tf.random.set_seed(None)
    (tmp_path / "model.py").write_text(MODULE.format(change=change))
    spec = JobSpec(training=TrainingConfig(), model=str(tmp_path / "model.py"))
    assert model_job.check(spec, tmp_path)["num_examples"] == 100


def test_what_need_not_keep_its_order_does_not_pass(tmp_path: Path) -> None:
    change = ".map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False)"
    (tmp_path / "model.py").write_text(MODULE.format(change=change))
    spec = JobSpec(training=TrainingConfig(), model=str(tmp_path / "model.py"))
    with pytest.raises(DataError, match="Leave that argument out"):
        model_job.check(spec, tmp_path)
