"""Checkpoints survive damage and full disks; those of another training are refused."""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import (
    CheckpointDamagedError,
    CheckpointNotWrittenError,
    ConfigurationError,
)
from hvd_elastic_keras.state.checkpoint import directories, manifest
from hvd_elastic_keras.state.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.state.run_state import VERSION

ORIGIN = Origin("global", 0, 64, 8, seed=0, num_examples=1000)


RUN = {"version": VERSION, "a": 1}
OTHER_RUN = {"version": VERSION, "a": 2}
RUN_OF_BYTES = {**RUN, "best": b"x" * 5000}


def variables(*shapes: tuple[int, ...]) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(shape, 3.0)) for shape in shapes]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The checkpoint of two variables."""
    return CheckpointManager(tmp_path, ORIGIN).save(7, variables((2, 3), (4,)), RUN)


def test_what_was_saved_is_loaded(saved: Path, tmp_path: Path) -> None:
    fresh = [tf.Variable(tf.zeros((2, 3))), tf.Variable(tf.zeros((4,)))]
    manager = CheckpointManager(tmp_path, ORIGIN)
    assert manager.check_newest(fresh) == saved
    assert manager.load_newest(fresh, print) == (saved, RUN)
    assert all(float(tf.reduce_min(v)) == 3.0 for v in fresh)


def newest(tmp_path: Path) -> tuple[list[str], tuple[Path, dict[str, Any]] | None]:
    """What is said on going on from the newest checkpoint, and what is found."""
    said: list[str] = []
    found = CheckpointManager(tmp_path, ORIGIN).load_newest(variables((2, 3), (4,)), said.append)
    return said, found


def cut(path: Path) -> None:
    (data,) = path.glob("variables.data*")
    data.write_bytes(data.read_bytes()[:5])


def turn_a_bit(path: Path) -> None:
    (data,) = path.glob("variables.data*")
    content = bytearray(data.read_bytes())
    content[7] ^= 1
    data.write_bytes(content)


def change_a_value(path: Path) -> None:
    file = path / "state.json"
    file.write_text(file.read_text().replace('"a": 1', '"a": 2'))


DAMAGES = {
    r"variables\.data.* has 5 bytes, expected": cut,
    r"variables\.data.* does not have its checksum": turn_a_bit,
    r"state\.json does not have its checksum": change_a_value,
    r"state\.json has 2 bytes": lambda path: (path / "state.json").write_text("[]"),
    r"state\.bytes has 19 bytes": lambda p: (p / "state.bytes").write_text("more than there was"),
    r"No such file": lambda path: (path / "variables.index").unlink(),
    r"manifest\.json does not have its checksum": lambda p: (p / "manifest.json").write_text("{}"),
    r"No such file or directory: .*manifest\.json": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_set_aside_and_the_one_before_it_is_used(
    damage: str, saved: Path, tmp_path: Path
) -> None:
    later = CheckpointManager(tmp_path, ORIGIN).save(9, variables((2, 3), (4,)), RUN)
    DAMAGES[damage](later)
    manager = CheckpointManager(tmp_path, ORIGIN)
    assert manager.check_newest(variables((2, 3), (4,))) == saved
    assert later.exists()  # who only looks changes nothing
    said, found = newest(tmp_path)
    assert found == (saved, RUN)
    (line,) = said
    assert re.search(rf"warning: The checkpoint {later} is damaged \(.*{damage}", line)
    assert "The one before it, step-00000007, is used" in line
    assert not later.exists()
    assert (later.parent / "damaged-step-00000009").exists()
    assert newest(tmp_path) == ([], (saved, RUN))


def test_if_none_is_whole_nobody_begins_anew_unasked(saved: Path, tmp_path: Path) -> None:
    cut(saved)
    words = r"step-00000007 is damaged .* None before it is whole\. Remove .* from the beginning"
    with pytest.raises(CheckpointDamagedError, match=words):
        newest(tmp_path)
    assert saved.exists()


def test_so_many_of_the_newest_are_kept(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, ORIGIN, keep=3)
    for step in range(5):
        manager.save(step, variables((2, 3), (4,)), RUN)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"step-{step:08d}" for step in (2, 3, 4)]


def test_steps_are_numbers_and_what_stands_beside_them_is_no_checkpoint(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, ORIGIN)
    for step in (99_999_999, 100_000_000):
        last = manager.save(step, variables((2, 3), (4,)), RUN)
    for stray in ("step-200000000.bak", "step-", "Step-300000000", "copy of step-00000001"):
        (tmp_path / stray).mkdir()
    assert newest(tmp_path) == ([], (last, RUN))


@pytest.fixture
def no_room() -> Iterator[None]:
    """Files of this process can have 1,000 bytes, as on a disk with no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("shape", [(2, 3), (1000,)])
def test_without_room_nothing_is_lost_and_nothing_is_left(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    manager = CheckpointManager(tmp_path, ORIGIN)
    with pytest.raises(CheckpointNotWrittenError, match="step-00000008 could not be written: "):
        manager.save(8, variables(shape), RUN_OF_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_writing_the_same_step_again_replaces_it(saved: Path, tmp_path: Path) -> None:
    assert CheckpointManager(tmp_path, ORIGIN).save(7, variables((2, 3), (4,)), OTHER_RUN) == saved
    assert newest(tmp_path) == ([], (saved, OTHER_RUN))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def saved_in(term: int, step: int, tmp_path: Path) -> Path:
    return CheckpointManager(tmp_path, ORIGIN, term=lambda: term).save(
        step, variables((2, 3), (4,)), RUN
    )


def test_who_belongs_to_an_earlier_start_of_the_job_writes_nothing_any_more(
    tmp_path: Path,
) -> None:
    first = saved_in(1, 7, tmp_path)
    second = saved_in(2, 8, tmp_path)
    words = r"one of a later start of this job \(number 2; this worker belongs to number 1\)"
    for step in (8, 9):
        with pytest.raises(CheckpointNotWrittenError, match=words):
            saved_in(1, step, tmp_path)
    assert sorted(path.name for path in second.parent.iterdir()) == [first.name, second.name]
    assert newest(tmp_path) == ([], (second, RUN))
    alone = CheckpointManager(tmp_path, ORIGIN).save(9, variables((2, 3), (4,)), RUN)
    assert manifest.read(alone).term == 2


def test_what_an_earlier_start_wrote_late_is_older_than_what_a_later_one_wrote(
    tmp_path: Path,
) -> None:
    late = saved_in(1, 500, tmp_path)
    assert newest(tmp_path) == ([], (late, RUN))
    later = saved_in(2, 410, tmp_path)
    assert newest(tmp_path) == ([], (later, RUN))
    last = saved_in(2, 420, tmp_path)
    assert sorted(path.name for path in last.parent.iterdir()) == [later.name, last.name]
    (last / "manifest.json").unlink()
    assert newest(tmp_path)[1] == (later, RUN)


def test_one_that_cannot_be_replaced_stays(saved: Path, tmp_path: Path) -> None:
    missing = saved.with_name(".step-00000007.4711")
    with pytest.raises(FileNotFoundError):
        directories.put_in_place(missing, saved)
    assert newest(tmp_path) == ([], (saved, RUN))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_one_that_a_killed_process_was_about_to_replace_gets_its_name_back(
    saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, saved.with_name(".step-00000007.4711"))
    saved.rename(saved.with_name(".step-00000007.4711.before"))
    CheckpointManager(tmp_path, ORIGIN).remove_unfinished()
    assert newest(tmp_path) == ([], (saved, RUN))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


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


def test_arrays_and_bytes_of_the_state_are_written_as_they_are(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, ORIGIN)
    path = manager.save(8, variables((4,)), RUN_OF_BYTES)
    assert (path / "state.bytes").read_bytes() == b"x" * 5000
    assert (path / "state.json").stat().st_size < 1000
    assert manager.load_newest(variables((4,)), print) == (path, RUN_OF_BYTES)


def test_a_state_of_another_version_is_refused_before_variables_are_set(tmp_path: Path) -> None:
    path = CheckpointManager(tmp_path, ORIGIN).save(7, variables((2,)), {"version": 1})
    fresh = [tf.Variable([0.0, 0.0])]
    message = rf"The checkpoint {path} holds a state of version 1, expected {VERSION}\. Use the"
    with pytest.raises(ConfigurationError, match=message):
        CheckpointManager(tmp_path, ORIGIN).load_newest(fresh, print)
    assert fresh[0].numpy().tolist() == [0.0, 0.0]


def test_another_format_is_refused(saved: Path, tmp_path: Path) -> None:
    (saved / "manifest.json").unlink()
    manifest.write(saved, version=4)
    with pytest.raises(ConfigurationError, match="has format version 4, expected 3"):
        CheckpointManager(tmp_path, ORIGIN).check_newest(variables((2, 3), (4,)))


def test_other_data_are_refused(saved: Path, tmp_path: Path) -> None:
    other = Origin("global", 0, 64, 8, seed=0, num_examples=999)
    with pytest.raises(ConfigurationError, match=r"with 1,000 training examples.*999 training"):
        CheckpointManager(tmp_path, other).check_newest(variables((2, 3), (4,)))


def test_another_batch_size_is_refused(saved: Path, tmp_path: Path) -> None:
    other = Origin("global", 0, 32, 8, seed=0, num_examples=1000)
    with pytest.raises(ConfigurationError, match="Use global_batch_size=64, or another job_dir"):
        CheckpointManager(tmp_path, other).check_newest(variables((2, 3), (4,)))
