"""Jobs that evaluate or predict, by one process: as Keras does, whatever the model and the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hvd_elastic_keras
from hvd_elastic_keras.api import inference_job
from hvd_elastic_keras.common.errors import ConfigurationError, DataError, ModelModuleError
from hvd_elastic_keras.settings.job_spec import EVALUATE, PREDICT, JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.worker.session import SoloSession

BEGIN = """
import keras, numpy as np, tensorflow as tf
layers = keras.layers
X = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")

"""
ONE_OUTPUT = """
def model():
    return keras.Sequential([keras.Input((4,)), layers.BatchNormalization(),
                             layers.Dropout(0.5), layers.Dense(2, "softmax")])
def loss():
    return "sparse_categorical_crossentropy"
"""
ARRAYS = """
def dataset(split):
    return X if split == "predict" else (X, Y) if split == "validation" else None
"""


def spec_of(tmp_path: Path, text: str, job: str, split: str = "", **training: Any) -> JobSpec:
    """A job of a module with this text, whose weights have been saved."""
    path = tmp_path / "module.py"
    path.write_text(BEGIN + text)
    config = TrainingConfig(**{"global_batch_size": 16, "micro_batch_size": 4, **training})
    weights = tmp_path / "some.weights.h5"
    spec = JobSpec(
        config,
        str(path),
        job=job,
        checkpoint=str(weights),
        split=split or {EVALUATE: "validation", PREDICT: "predict"}[job],
        output=str(tmp_path / "output") if job == PREDICT else "",
    )
    keras.utils.set_random_seed(5)
    model = inference_job.load_module(spec).model(compiled=False)
    model(np.zeros((1, 4), "float32"))
    rng = np.random.default_rng(3)
    for variable in model.weights:
        variable.assign(rng.uniform(0.2, 1.0, variable.shape))
    model.save_weights(weights)
    return spec


def model_of(spec: JobSpec) -> keras.Model:
    """The same model for plain Keras."""
    model = inference_job.load_module(spec).model(compiled=spec.job == EVALUATE)
    model(np.zeros((1, 4), "float32"))
    model.load_weights(spec.checkpoint)
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def predicted(spec: JobSpec) -> Any:
    inference_job.make_inference(spec, SoloSession()).run()
    return hvd_elastic_keras.read_predictions(spec.output)


def assert_same(found: Any, expected: Any) -> None:
    keras.tree.assert_same_structure(found, expected)
    for mine, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)


OWN_TEST_STEP = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)
        self.seen = keras.metrics.Sum(name="seen")
    def call(self, x):
        return self.dense(x)
    @property
    def metrics(self):
        return [self.seen]
    def test_step(self, data):
        x, y = data
        self.seen.update_state(self(x)[:, 0])
        return {"seen": self.seen.result()}

def model():
    return Model()
def loss():
    return "sparse_categorical_crossentropy"
"""


@pytest.mark.parametrize("text", [ONE_OUTPUT, OWN_TEST_STEP])
def test_an_evaluation_is_that_of_keras(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, text + ARRAYS, EVALUATE)
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        inference_job.InferenceJob, "_write_results", lambda _, results: str(found.update(results))
    )
    inference_job.make_inference(spec, SoloSession()).run()
    x, y = data()
    expected = model_of(spec).evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)


TUPLE_OUTPUT = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
    def call(self, x):
        y = self.dense(x)
        return y, {"sum": keras.ops.sum(y, -1), "argmax": keras.ops.argmax(y, -1)}

def model():
    return Model()
"""
OWN_PREDICT_STEP = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
    def call(self, x):
        return self.dense(x)
    def predict_step(self, data):
        return 10 * self(data)  # of one array, Keras makes no tuple

def model():
    return Model()
"""


@pytest.mark.parametrize("text", [ONE_OUTPUT, TUPLE_OUTPUT, OWN_PREDICT_STEP])
def test_predictions_are_those_of_keras(text: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, text + ARRAYS, PREDICT)
    assert inference_job.check(spec)["num_examples"] == 50
    assert_same(predicted(spec), model_of(spec).predict(data()[0], verbose=0))
    index = json.loads((Path(spec.output) / "predictions.json").read_text())
    assert index["num_examples"] == 50
    assert [(p["start"], p["stop"]) for p in index["parts"]][-2:] == [(44, 48), (48, 50)]


@pytest.mark.parametrize(
    "returned",
    [
        "(X, Y)",
        "tf.data.Dataset.from_tensor_slices(X)",
        "tf.data.Dataset.from_tensor_slices((X, Y))",
        "tf.data.Dataset.from_tensor_slices(X).filter(lambda x: True)",
        "(list(range(50)), lambda n: tf.gather(X, n))",
    ],
)
def test_all_kinds_of_data_are_predicted_from(returned: str, tmp_path: Path) -> None:
    if "list" in returned:
        returned = "(Numbers(), lambda n: tf.ensure_shape(tf.gather(X, n), (4,)))"
    text = f"""
class Numbers:
    def __len__(self):
        return 50
    def __getitem__(self, n):
        return np.int64(n)

def dataset(split):
    return {returned}
"""
    spec = spec_of(tmp_path, ONE_OUTPUT + text, PREDICT)
    assert inference_job.check(spec)["num_examples"] == 50
    assert_same(predicted(spec), model_of(spec).predict(data()[0], verbose=0))


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ONE_OUTPUT + ARRAYS, PREDICT)
    first = predicted(spec)
    parts = sorted((Path(spec.output) / "parts").iterdir())
    removed = parts.pop(7)
    removed.unlink()
    before = {path: path.stat().st_mtime_ns for path in parts}
    np.testing.assert_array_equal(predicted(spec), first)
    assert removed.exists()
    assert {path: path.stat().st_mtime_ns for path in parts} == before


def test_predictions_of_other_weights_have_another_identity(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ONE_OUTPUT + ARRAYS, PREDICT)
    before = inference_job.check(spec)["identity"]
    assert inference_job.check(spec)["identity"] == before
    model = model_of(spec)
    model.weights[0].assign(model.weights[0] + 1e-6)
    model.save_weights(spec.checkpoint)
    after = inference_job.check(spec)["identity"]
    assert [name for name in before if before[name] != after[name]] == ["weights"]


def test_random_predictions_are_told_of(tmp_path: Path, told: list[str]) -> None:
    text = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.dropout = layers.Dense(2), layers.Dropout(0.5)
    def call(self, x):
        return self.dropout(self.dense(x), training=True)

def model():
    return Model()
"""
    inference_job.check(spec_of(tmp_path, text + ARRAYS, PREDICT))
    assert any("predict_step draws random numbers" in text for text in told)


def test_dropout_that_is_off_is_not_told_of(tmp_path: Path, told: list[str]) -> None:
    inference_job.check(spec_of(tmp_path, ONE_OUTPUT + ARRAYS, PREDICT))
    assert told == []


ROWS = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)
    def call(self, x):
        return {}

def model():
    return Model()
"""


@pytest.mark.parametrize(
    ("text", "split", "error", "says"),
    [
        (ONE_OUTPUT, "nothing", ModelModuleError, "returned None"),
        (ROWS.format("keras.ops.sum(self.dense(x))"), "", DataError, "float32 of shape ()"),
        (ROWS.format("self.dense(x)[:1]"), "", DataError, "1 rows for 32 examples|rows for 16"),
        (ROWS.format("tf.as_string(self.dense(x))"), "", DataError, "string of shape"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    text: str, split: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, text + ARRAYS, PREDICT, split)
    with pytest.raises(error, match=says.replace("()", r"\(\)")):
        inference_job.check(spec)


def test_data_that_the_model_does_not_take_are_refused(tmp_path: Path) -> None:
    data_of_5 = "\ndef dataset(split):\n    return np.ones((50, 5), 'float32')\n"
    spec = spec_of(tmp_path, ONE_OUTPUT + data_of_5, PREDICT)
    with pytest.raises(DataError, match="The model cannot predict from the first examples"):
        inference_job.check(spec)


def test_an_evaluation_without_labels_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ONE_OUTPUT + ARRAYS, EVALUATE, "predict")
    with pytest.raises(DataError):
        inference_job.check(spec)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ONE_OUTPUT + ARRAYS, PREDICT)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(7)]).save_weights(spec.checkpoint)
    with pytest.raises(ConfigurationError, match=r"--checkpoint=.*does not have the weights"):
        inference_job.check(spec)
