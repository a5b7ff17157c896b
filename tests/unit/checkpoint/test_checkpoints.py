"""Checkpoints that are damaged, or of another training, are refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.checkpoint.manager import CheckpointManager, Origin  # noqa: E402
from hvd_elastic_keras.errors import ConfigurationError  # noqa: E402

ORIGIN = Origin("global", 0, 64, 8, seed=0, num_examples=1000)


def variables(*shapes: tuple[int, ...]) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(shape, 3.0)) for shape in shapes]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The checkpoint of two variables."""
    return CheckpointManager(tmp_path, ORIGIN).save(7, variables((2, 3), (4,)), {"a": 1})


def test_what_was_saved_is_loaded(saved: Path, tmp_path: Path) -> None:
    fresh = [tf.Variable(tf.zeros((2, 3))), tf.Variable(tf.zeros((4,)))]
    manager = CheckpointManager(tmp_path, ORIGIN)
    assert manager.check_newest(fresh) == saved
    assert manager.load_newest(fresh) == (saved, {"a": 1})
    assert all(float(tf.reduce_min(v)) == 3.0 for v in fresh)


def test_a_file_that_was_cut_is_found_before_anything_is_loaded(
    saved: Path, tmp_path: Path
) -> None:
    (data,) = saved.glob("variables.data*")
    data.write_bytes(data.read_bytes()[:5])
    with pytest.raises(ConfigurationError, match=r"is damaged \(variables\.data.* has 5 bytes"):
        CheckpointManager(tmp_path, ORIGIN).check_newest(variables((2, 3), (4,)))


def test_a_file_that_is_missing_or_no_json_is_damage(saved: Path, tmp_path: Path) -> None:
    (saved / "variables.index").unlink()
    with pytest.raises(ConfigurationError, match="is damaged"):
        CheckpointManager(tmp_path, ORIGIN).check_newest(variables((2, 3), (4,)))
    (saved / "state.json").write_text("{")
    with pytest.raises(ConfigurationError, match="Remove that directory to use the one before"):
        CheckpointManager(tmp_path, ORIGIN).check_newest(variables((2, 3), (4,)))


def test_a_damaged_file_of_the_right_size_is_damage_too(saved: Path, tmp_path: Path) -> None:
    (index,) = saved.glob("variables.index")
    index.write_bytes(b"x" * index.stat().st_size)
    fresh = variables((2, 3), (4,))
    with pytest.raises(ConfigurationError, match="is damaged"):
        CheckpointManager(tmp_path, ORIGIN).load_newest(fresh)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(2, 3), (5,)], r"number 1: float32 \[4\] there, float32 \[5\] now"),
        ([(2, 3)], r"holds 2 variables, and there are 1 now.*float32 \[4\] there, none now"),
        ([(2, 3), (4,), ()], r"holds 2 variables.*none there, float32 \[\] now"),
    ],
)
def test_another_model_is_refused(
    shapes: list[tuple[int, ...]], words: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="of another model or optimizer.*" + words):
        CheckpointManager(tmp_path, ORIGIN).check_newest(variables(*shapes))


def test_checkpoints_of_older_releases_do_not_say_what_they_hold(
    saved: Path, tmp_path: Path
) -> None:
    state = json.loads((saved / "state.json").read_text())
    del state["variables"], state["bytes"]
    (saved / "state.json").write_text(json.dumps(state))
    manager = CheckpointManager(tmp_path, ORIGIN)
    assert manager.load_newest(variables((2, 3), (4,))) is not None
    with pytest.raises(ConfigurationError, match="of another model or optimizer"):
        manager.load_newest(variables((2, 3), (5,)))


def test_other_data_are_refused(saved: Path, tmp_path: Path) -> None:
    other = Origin("global", 0, 64, 8, seed=0, num_examples=999)
    with pytest.raises(ConfigurationError, match=r"with 1,000 training examples.*999 training"):
        CheckpointManager(tmp_path, other).check_newest(variables((2, 3), (4,)))


def test_another_batch_size_is_refused(saved: Path, tmp_path: Path) -> None:
    other = Origin("global", 0, 32, 8, seed=0, num_examples=1000)
    with pytest.raises(ConfigurationError, match="Use global_batch_size=64, or another job_dir"):
        CheckpointManager(tmp_path, other).check_newest(variables((2, 3), (4,)))
