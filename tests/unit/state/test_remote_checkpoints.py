"""Checkpoints where only TensorFlow's file systems reach: `ram://` stands for all of them."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.state.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.state.checkpoint.remote import checkpoints_of, place_of
from hvd_elastic_keras.state.run_state import VERSION

ORIGIN = Origin("global", 0, 64, 8, seed=0, num_examples=1000)
RUN = {"version": VERSION, "best": b"x" * 5000}
gfile = tf.io.gfile
NUMBERS = itertools.count()


@pytest.fixture
def url() -> str:
    """A directory that nobody has used."""
    return f"ram://checkpoints/{next(NUMBERS)}"


def variables(value: float = 3.0) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(shape, value)) for shape in ((2, 3), (4,))]


def manager(url: str, **more: Any) -> CheckpointManager:
    return CheckpointManager(place_of(url), ORIGIN, **more)


def names(url: str) -> list[str]:
    return sorted(name.rstrip("/") for name in gfile.listdir(url))


def test_what_was_saved_is_loaded_and_old_ones_are_removed(url: str) -> None:
    assert manager(url).check_newest(variables()) is None
    for step in (8, 9, 10, 10):
        saved = manager(url).save(step, variables(float(step)), RUN)
    assert str(saved) == f"{url}/step-00000010"
    assert names(url) == ["step-00000009", "step-00000010"]
    fresh = variables()
    assert manager(url).load_newest(fresh, print) == (saved, RUN)
    assert all(np.all(v.numpy() == 10.0) for v in fresh)


def test_without_its_manifest_it_is_none_and_is_removed(url: str) -> None:
    first = manager(url).save(8, variables(), RUN)
    manager(url).save(9, variables(), RUN)
    gfile.remove(f"{url}/step-00000009/manifest.json")
    assert manager(url).load_newest(variables(), pytest.fail) == (first, RUN)
    manager(url).remove_unfinished()
    assert names(url) == ["step-00000008"]


def test_a_damaged_one_is_told_and_the_one_before_it_is_used(url: str) -> None:
    first = manager(url).save(8, variables(), RUN)
    manager(url).save(9, variables(), RUN)
    with gfile.GFile(f"{url}/step-00000009/state.bytes", "wb") as file:
        file.write(b"damaged")
    said: list[str] = []
    assert manager(url).load_newest(variables(), said.append) == (first, RUN)
    (line,) = said
    assert f"{url}/step-00000009 is damaged (state.bytes has" in line


def test_one_that_cannot_be_written_leaves_nothing(url: str) -> None:
    with pytest.raises(CheckpointNotWrittenError, match="nosuch://b/step-00000001 could not be"):
        manager("nosuch://b").save(1, variables(), RUN)
    manager(url, term=lambda: 2).save(8, variables(), RUN)
    with pytest.raises(CheckpointNotWrittenError, match="of a later start of this job"):
        manager(url, term=lambda: 1).save(9, variables(), RUN)
    assert names(url) == ["step-00000008"]


def test_each_training_has_its_own(tmp_path: Path) -> None:
    places = [
        str(checkpoints_of(tmp_path, n, where)) for where in ("", "gs://b/j/") for n in (1, 2)
    ]
    in_job = [str(tmp_path / "checkpoints"), str(tmp_path / "training-2" / "checkpoints")]
    assert places == [*in_job, "gs://b/j", "gs://b/j/training-2"]


def test_a_training_goes_on_from_there(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise={"checkpoint_dir": url}).encode())
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")

    def trained(epochs: int, job_dir: Path | None) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        config = TrainingConfig(global_batch_size=8, epochs=epochs)
        Trainer(model, (x, x[:, :1]), config=config, job_dir=job_dir).fit()
        return model

    trained(2, tmp_path / "a")
    assert names(url) == ["owner.json", "step-00000002", "step-00000004"]
    assert not (tmp_path / "a" / "checkpoints").exists()
    shutil.rmtree(tmp_path / "a")
    found, expected = trained(4, tmp_path / "b"), trained(4, None)
    for mine, theirs in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert names(url)[-1] == "step-00000008"
