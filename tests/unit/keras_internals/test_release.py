"""The one check of the private names of Keras and TensorFlow, at start."""

from __future__ import annotations

import subprocess
import sys

import pytest

keras = pytest.importorskip("keras")

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals import fit_call, release, tensorflow_names


def test_the_installed_release_has_everything() -> None:
    assert release.missing_names() == []
    release.check()


def test_a_release_without_a_private_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(release.METHODS, keras.Model, ("_symbolic_build", "_of_another_release"))
    with pytest.raises(ConfigurationError) as caught:
        release.check()
    assert f"Keras {keras.__version__}" in str(caught.value)
    assert "Model has no _of_another_release" in str(caught.value)
    assert "pip install" in str(caught.value)


def test_a_release_without_a_private_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = release.importlib.import_module

    def fails(name: str) -> object:
        if name == fit_call.__name__:
            raise ModuleNotFoundError("No module named 'keras.src.trainers'")
        return import_module(name)

    monkeypatch.setattr(release.importlib, "import_module", fails)
    assert release.missing_names() == ["No module named 'keras.src.trainers'"]


def test_a_script_can_set_threads_after_its_imports() -> None:
    code = (
        "import tensorflow as tf\n"
        "from hvd_elastic_keras import ElasticCallback\n"
        "tf.config.threading.set_intra_op_parallelism_threads(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_a_dataset_without_a_private_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle = next(iter(tensorflow_names.ATTRIBUTES))
    monkeypatch.setitem(tensorflow_names.ATTRIBUTES, shuffle, ("_seed", "_of_another_release"))
    assert release.missing_names() == [f"{shuffle.__name__} has no _of_another_release"]
