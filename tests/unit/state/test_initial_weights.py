"""A training may start from weights that somebody else has trained."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_job import make_trainer
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.state.checkpoint import manager
from hvd_elastic_keras.worker.session import SoloSession

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def build(units: int = 3) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(units, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, keras.Model]:
    """The directory of a job, and its model."""
    directory = tmp_path_factory.mktemp("job")
    model = build()
    config = TrainingConfig(global_batch_size=16, micro_batch_size=16, epochs=2)
    Trainer(model, (X, X[:, :1]), config=config, job_dir=directory).fit()
    model.save_weights(directory / "by_hand.weights.h5")
    return directory, model


@pytest.mark.parametrize("optimizer_is_built", [False, True])
@pytest.mark.parametrize(
    "kind", ["", "model.keras", "by_hand.weights.h5", "checkpoints/step-00000004", "checkpoints"]
)
def test_they_come_from_whatever_a_training_leaves(
    trained: tuple[Path, keras.Model], kind: str, optimizer_is_built: bool
) -> None:
    directory, before = trained
    model = build()
    if optimizer_is_built:
        model.optimizer.build(model.trainable_variables)
    manager.load_initial_weights(model, directory / kind)
    for found, expected in zip(model.weights, before.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    for variable in model.optimizer.variables[2:]:
        np.testing.assert_array_equal(variable, np.zeros(variable.shape), "it begins anew")
    assert int(model.optimizer.iterations.numpy()) == 0


def test_they_come_from_the_newest_checkpoint_of_a_job_that_has_not_ended(
    trained: tuple[Path, keras.Model], tmp_path: Path
) -> None:
    directory, before = trained
    (tmp_path / "checkpoints").symlink_to(directory / "checkpoints")
    model = build()
    manager.load_initial_weights(model, tmp_path)
    np.testing.assert_array_equal(model.get_weights()[0], before.get_weights()[0])


@pytest.mark.parametrize("kind", ["model.keras", "by_hand.weights.h5", "checkpoints/step-00000004"])
def test_those_of_another_model_are_refused(trained: tuple[Path, keras.Model], kind: str) -> None:
    with pytest.raises(ConfigurationError, match="does not have the weights of this model"):
        manager.load_initial_weights(build(units=5), trained[0] / kind)


@pytest.mark.parametrize(
    ("name", "problem"), [("nowhere", "does not exist"), (".", "holds no weights")]
)
def test_where_there_are_none_it_is_said_what_is_expected(
    tmp_path: Path, name: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{problem}. Expected a file of Keras"):
        manager.load_initial_weights(build(), tmp_path / name)


def test_the_job_of_a_model_module_starts_from_them(
    trained: tuple[Path, keras.Model], tmp_path: Path
) -> None:
    directory, before = trained
    (tmp_path / "its_model.py").write_text(
        "import keras\nimport numpy as np\n\n\n"
        f"{inspect.getsource(build)}\n\ndef model():\n    return build()\n\n\n"
        "def dataset():\n    x = np.ones((8, 4), 'float32')\n    return x, x[:, :1]\n"
    )
    spec = JobSpec(TrainingConfig(), str(tmp_path / "its_model.py"), init_from=str(directory))
    trainer = make_trainer(spec, SoloSession())
    for found, expected in zip(trainer.model.weights, before.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
