"""`keep_best` keeps the model of the epoch in which a metric was best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras

from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.loop.observers.best_model import best_of

X = np.arange(16, dtype="float32").reshape(8, 2) / 16
NAN = float("nan")


class Wanders(keras.callbacks.Callback):
    """Makes the model better and worse from epoch to epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets a rate of 0 that grows in the wrong direction in two of five epochs."""
        self.model.optimizer.learning_rate = [0.01, -0.2, 0.15, 0.2, -0.3][epoch]


class OwnMetric(keras.metrics.Metric):
    """A metric of which Keras does not know which values are better."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.sum = self.add_variable((), "zeros")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        """Adds the errors."""
        self.sum.assign_add(keras.ops.sum(keras.ops.abs(y - p)))

    def result(self) -> Any:
        """The sum of the errors."""
        return self.sum.value


class ErrorOfEach(keras.metrics.Metric):
    """A metric whose result is no number."""

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        """Keeps nothing."""

    def result(self) -> Any:
        """Two numbers."""
        return keras.ops.ones(2)


class NotSaved(keras.Model):
    """A model that Keras cannot save as a whole."""

    def get_config(self) -> Any:
        """Fails."""
        raise NotImplementedError("this model has no configuration")


def train(
    job_dir: Path | None, keep_best: str, kind: Any = keras.Model, *, validates: bool = True
) -> tuple[keras.Model, dict[str, list[float]]]:
    keras.utils.set_random_seed(3)
    given = keras.Input((2,))
    model = kind(given, keras.layers.Dense(2)(given))
    metrics = ["mae", OwnMetric(), ErrorOfEach(name="each")]
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics)
    config = TrainingConfig(
        global_batch_size=4, micro_batch_size=2, epochs=5, keep_best=keep_best, shuffle=False
    )
    data = {"validation": (X[:6], X[:6])} if validates else {}
    trainer = Trainer(model, (X, X), config=config, job_dir=job_dir, callbacks=[Wanders()], **data)
    return model, trainer.fit().history


@pytest.mark.parametrize(
    ("asked", "metric", "choose"),
    [
        ("val_loss", "val_loss", np.argmin),
        ("mae:max", "mae", np.argmax),
        ("val_loss:max", "val_loss", np.argmax),
        ("val_own:min", "val_own", np.argmin),
    ],
)
def test_the_model_of_the_best_epoch_is_kept(
    asked: str, metric: str, choose: Any, tmp_path: Path
) -> None:
    _, history = train(tmp_path, asked)
    best = int(choose(history[metric]))
    assert 0 < best < 4, history[metric]
    found = json.loads((tmp_path / files.BEST_RECORD).read_text())
    expected = {
        "metric": metric,
        "epoch": best,
        "value": history[metric][best],
        "step": 2 * best + 2,
    }
    assert found == expected
    kept = keras.models.load_model(tmp_path / files.BEST, compile=False)
    kept.compile(loss="mse")
    loss = kept.evaluate(X[:6], X[:6], verbose=0)
    assert loss == pytest.approx(history["val_loss"][best], rel=1e-5)


def test_of_a_model_that_cannot_be_saved_the_weights_are_kept(tmp_path: Path) -> None:
    model, history = train(tmp_path, "val_loss", NotSaved)
    assert not (tmp_path / files.BEST).exists()
    model.load_weights(tmp_path / files.BEST_WEIGHTS)
    loss = model.evaluate(X[:6], X[:6], verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(min(history["val_loss"]), rel=1e-5)


def test_a_metric_that_is_no_number_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "each:max")
    warning = "warning: keep_best=each keeps nothing: the numbers of an epoch are loss, mae, own, "
    assert capsys.readouterr().out.count(warning) == 1
    assert not list(tmp_path.glob("best*"))


@pytest.mark.parametrize(
    ("asked", "validates", "words"),
    [
        (
            "val_los",
            True,
            "expected one of the metrics of the model: loss, mae, own, each, or one of",
        ),
        (
            "accuracy",
            True,
            "expected one of the metrics of the model: loss, mae, own, each, or one of",
        ),
        ("val_loss", False, "but there are no validation data. Give some, or choose a metric"),
        ("val_own", True, "does not know .* better. Write keep_best=val_own:min or keep_best="),
        ("loss:down", True, "keep_best='loss:down' was given, expected a value that is the name"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_step(
    asked: str, validates: bool, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        train(tmp_path, asked, validates=validates)
    assert not (tmp_path / files.HISTORY).exists()


class WithBleu(keras.Model):
    """A model that makes the logs of an evaluation by itself."""

    def test_step(self, data: Any) -> Any:
        """As Keras, with another number."""
        return {**super().test_step(data), "bleu": keras.ops.sum(self.trainable_variables[0])}


def test_a_metric_that_the_model_makes_by_itself_is_accepted(tmp_path: Path) -> None:
    _, history = train(tmp_path, "val_bleu:max", WithBleu)
    found = json.loads((tmp_path / files.BEST_RECORD).read_text())
    assert found["value"] == max(history["val_bleu"])


def test_a_full_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = files.write_json

    def full(path: Path, content: Any) -> None:
        if path.name == files.BEST_RECORD:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write_json", full)
    train(tmp_path, "val_loss")
    warning = "warning: best.json could not be saved: No space left on device"
    assert capsys.readouterr().out.count(warning) == 1


def test_an_option_of_another_type_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="keep_best=True was given, expected a value that"):
        ElasticCallback(keep_best=True)  # type: ignore[arg-type]


def test_without_a_job_there_is_no_place_to_keep_it() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    before = model.get_weights()[0]
    with pytest.raises(ConfigurationError, match=r"no job directory.*ModelCheckpoint"):
        model.fit(X, X, verbose=0, callbacks=[ElasticCallback(keep_best="loss")])
    np.testing.assert_array_equal(model.get_weights()[0], before)


@pytest.mark.parametrize(
    ("values", "direction", "best"),
    [
        ([2.0, 1.0, 1.0], "min", 1),
        ([2.0, 1.0, 3.0], "max", 2),
        ([NAN, 1.0, NAN], "min", 1),
        ([NAN, 1.0, float("inf")], "max", 1),
        ([NAN], "min", -1),
        ([], "max", -1),
    ],
)
def test_the_best_value_is_the_first_finite_one(
    values: list[float], direction: str, best: int
) -> None:
    assert best_of(values, direction) == best
