"""The table of models (`tests/harness/keras_models`): a step of three workers, one without rows."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from keras.src.trainers import data_adapters

from hvd_elastic_keras.data.examples.structure import batched, num_examples, per_row
from hvd_elastic_keras.keras_internals.model_building import build
from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.keras_models import all_cases
from tests.harness.keras_models.case import Case
from tests.harness.lockstep import assert_close, take_step

CASES = all_cases()
OF_DATA = {"x", "y", "sample_weight", "batch_size", "shuffle", "class_weight"}
DRAWS = {
    "sampling of an autoencoder by TensorFlow",
    "tf.random in train_step",
    "tf.random with an operation's seed",
    "TensorFlow's dropout",
    "tf.random in a condition",
}
"""Random numbers from a state that no other worker has: they follow from the number of the step."""
STEP = 7
LEFT_OUT = {
    "a stateful layer": "is computed whole",
    "the size of a batch in a train_step": "is computed whole",
    "the size of a batch in a layer": "is computed whole",
    "the weight of a sum stands in a list, one for each step": "runs eagerly",
}
TOLERANCES = {"half precision": 5e-3, "brain floats": 3e-2, "metrics of regression": 1e-4}
QUICK = {"a loss ignores a class", "shuffled features", "CTC of Keras", "tf.random in a condition"}


def spec_of(tensor: Any) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *tensor.shape[1:]], tensor.dtype)
    return batched(tensor)


def one_step(case: Case) -> tuple[Any, Any, Any]:
    """The captured step, a batch, and the plain step for any number of rows."""
    keras.utils.set_random_seed(1)
    model = case.model()
    arguments = {k: v for k, v in case.data().items() if k in OF_DATA}
    batch = next(iter(data_adapters.get_data_adapter(**arguments).get_tf_dataset()))
    spec = tf.nest.map_structure(spec_of, batch)
    build(model, spec, batch)
    captured = capture(model.train_step, spec, per_row=per_row(batch))
    plain = tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    if case in [CASES[name] for name in DRAWS]:
        number = tf.constant(STEP, tf.int64)
        return captured, batch, lambda batch: captured.function(*tf.nest.flatten(batch), number)
    return captured, batch, plain


@pytest.mark.slow(but=tuple(QUICK))
@pytest.mark.parametrize("name", [n for n in CASES if n not in LEFT_OUT])
def test_three_workers_come_to_what_one_comes_to(name: str) -> None:
    captured, batch, plain = one_step(CASES[name])
    flat = [t for t in tf.nest.flatten(batch) if t is not None]
    rows = num_examples(batch)
    analysis = analysed(captured, rows)
    before = {n: v.numpy() for n, v in captured.variables.items()}
    logs = tf.nest.flatten(plain(batch))
    expected = {n: v.numpy() for n, v in captured.variables.items()}
    for n, variable in captured.variables.items():
        variable.assign(before[n])
    shares = [rows // 3 + 1, 0, rows - rows // 3 - 1]
    outputs, found = take_step(captured, analysis, flat, shares, step_number=STEP)
    exact = TOLERANCES.get(name, 2e-5)
    for n, value in expected.items():
        assert_close(found[n], value, captured.variables[n].name, exact, 1e-2)
    for one, other in zip(tf.nest.flatten(captured.results(outputs)), logs, strict=True):
        assert_close(one, other, "the logs", exact, 1e-2)
