"""Commits on disk: when they are written, and what is refused, without a second process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras import elastic
from hvd_elastic_keras.api.elastic_loop import elastic_state
from hvd_elastic_keras.api.elastic_loop.elastic_checkpoints import LoopCheckpoints
from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.options import RunOptions
from hvd_elastic_keras.state.checkpoint import manifest
from hvd_elastic_keras.state.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.state.checkpoint.store import FORMAT_VERSION
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.reporter import TerminalReporter
from hvd_elastic_keras.worker.rounds import ProcessRounds
from hvd_elastic_keras.worker.session import SoloSession


class Session(SoloSession, TerminalReporter):
    """Keeps what is told."""

    def __init__(self) -> None:
        super().__init__()
        self._reporter = self
        self.shown = ""
        self.recorded: list[tuple[str, int]] = []

    def show(self, text: str) -> None:
        self.shown += text

    def record(self, entry: events.WorkerEntry) -> None:
        assert isinstance(entry, events.CheckpointSaved | events.CheckpointLoaded)
        assert entry.unit == "commit"
        self.recorded.append((events.name_of(type(entry)), entry.step))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    rounds = ProcessRounds(Membership(session, environment=None))
    monkeypatch.setattr(elastic_state, "rounds_of_process", lambda: rounds)


def net(width: int = 3) -> keras.Model:
    layers = [keras.layers.Dense(width), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dropout(0.5)])


def new_state(width: int = 3, **more: Any) -> elastic.ElasticState:
    flags = [tf.Variable([True, False]), tf.Variable([2**32 - 1], dtype=tf.uint32)]
    values = {"step": 0, "best": np.full(2, np.inf), "losses": []}
    state = elastic.ElasticState(
        net(width), keras.optimizers.Adam(), variables=flags, **{**values, **more}
    )
    state.exists = True
    return state


def train(state: elastic.ElasticState, steps: int = 1) -> None:
    for _ in range(steps):
        for variable in state.model.variables:
            variable.assign(tf.cast(variable.value, variable.dtype) + 1)
        state.step += 1
        state.losses = [*state.losses, 1.0 / state.step]
        state.commit()


def numbers(state: elastic.ElasticState) -> list[np.ndarray]:
    keras_variables = [*state.model.variables, *state.optimizer.variables]
    return [v.numpy() for v in state.variables] + [v.value.numpy() for v in keras_variables]


def saved(job_dir: Path, session: Session) -> elastic.ElasticState:
    """A state of 3 commits that is on disk."""
    state = new_state()
    state.variables[0].assign([False, True])
    train(state, 3)
    LoopCheckpoints(job_dir, state, session).save()
    return state


def test_a_new_process_has_every_variable_and_value_of_the_commit(
    tmp_path: Path, session: Session
) -> None:
    old = saved(tmp_path, session)
    new = new_state()
    assert LoopCheckpoints(tmp_path, new, session).load()
    for mine, theirs in zip(numbers(new), numbers(old), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (new.step, new.losses, new.commits) == (3, old.losses, 3)
    train(new)
    new.restore()
    assert new.step == 4
    assert session.recorded == [("checkpoint_saved", 3), ("checkpoint_loaded", 3)]
    assert session.shown == ""


def test_what_is_written_is_the_commit_and_not_what_came_after_it(
    tmp_path: Path, session: Session
) -> None:
    state = new_state()
    checkpoints = LoopCheckpoints(tmp_path, state, session)
    train(state)
    committed = numbers(state)
    state.step = 99
    for variable in state.model.variables:
        variable.assign(tf.zeros_like(variable.value))
    checkpoints.save()
    new = new_state()
    LoopCheckpoints(tmp_path, new, session).load()
    assert new.step == 1
    for mine, theirs in zip(numbers(new), committed, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def after_ten_commits(
    checkpoints: LoopCheckpoints, state: elastic.ElasticState, clock: Clock, job_dir: Path
) -> set[str]:
    """Names of the checkpoints that are there; commits are 10 s apart."""
    for _ in range(10):
        clock.now += 10
        train(state)
        checkpoints.after_commit()
        checkpoints.wait()
    return {path.name for path in (job_dir / "checkpoints").glob("step-*")}


@pytest.mark.parametrize(
    ("every", "written"),
    [
        ({"checkpoint_every_s": 60}, [6]),
        ({"checkpoint_every_s": 25.0}, [3, 6, 9]),
        ({"checkpoint_every_s": None}, []),
        ({"checkpoint_every_s": None, "checkpoint_every_n_commits": 4}, [4, 8]),
        ({"checkpoint_every_n_commits": 5}, [5, 10]),
    ],
)
def test_commits_are_written_by_time_or_number(
    every: dict[str, Any], written: list[int], tmp_path: Path, session: Session, clock: Clock
) -> None:
    state = new_state(**every)
    checkpoints = LoopCheckpoints(tmp_path, state, session, clock)
    names = after_ten_commits(checkpoints, state, clock, tmp_path)
    assert [step for _, step in session.recorded] == written
    assert names == {f"step-{step:08d}" for step in written[-2:]}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        (RunOptions(checkpoint_every_n_steps=3, keep_checkpoints=3), [3, 6, 9]),
        (RunOptions(checkpoint_every_minutes=0.5, keep_checkpoints=1), [3, 6, 9]),
    ],
)
def test_a_job_may_ask_for_more_and_for_how_many_are_kept(
    options: RunOptions, written: list[int], tmp_path: Path, session: Session, clock: Clock
) -> None:
    state = new_state(checkpoint_every_s=None)
    checkpoints = LoopCheckpoints(tmp_path, state, session, clock, options)
    names = after_ten_commits(checkpoints, state, clock, tmp_path)
    assert [step for _, step in session.recorded] == written
    assert names == {f"step-{step:08d}" for step in written[-options.keep_checkpoints :]}


def test_the_end_is_written_once_with_the_result_and_is_not_trained_again(
    tmp_path: Path, session: Session
) -> None:
    state = new_state()
    train(state, 2)
    state.finish()
    checkpoints = LoopCheckpoints(tmp_path, state, session)
    checkpoints.save(("done", 0.5))
    checkpoints.save(("done", 0.5))
    assert session.recorded == [("checkpoint_saved", 2)]
    new = new_state()
    after = LoopCheckpoints(tmp_path, new, session)
    assert after.load()
    assert (new.finished, after.result) == (True, ("done", 0.5))
    assert "was finished with commit 2: its function is not called again" in session.shown


def test_a_result_that_cannot_be_written_is_none(tmp_path: Path, session: Session) -> None:
    state = new_state()
    state.finish()
    LoopCheckpoints(tmp_path, state, session).save(object())
    after = LoopCheckpoints(tmp_path, new_state(), session)
    assert (after.load(), after.result) == (True, None)


def test_each_training_of_a_script_has_its_own(tmp_path: Path, session: Session) -> None:
    for number in (1, 2):
        session.join(None, 0, 0.0)
        state = new_state(losses=[])
        train(state, number)
        LoopCheckpoints(tmp_path, state, session).save()
    assert (tmp_path / "checkpoints" / "step-00000001").is_dir()
    assert (tmp_path / "training-2" / "checkpoints" / "step-00000002").is_dir()


def test_without_a_job_directory_nothing_is_written_or_said(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = new_state(checkpoint_every_n_commits=1)
    checkpoints = LoopCheckpoints(None, state, session)
    assert not checkpoints.load()
    train(state)
    checkpoints.after_commit()
    checkpoints.save()
    assert (session.shown, session.recorded, list(tmp_path.iterdir())) == ("", [], [])


def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path, session: Session) -> None:
    rest = tmp_path / "checkpoints" / ".step-00000007.4711"
    rest.mkdir(parents=True)
    assert not LoopCheckpoints(tmp_path, new_state(), session).load()
    assert not rest.exists()


def test_a_full_disk_is_told_and_training_goes_on(tmp_path: Path, session: Session) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    state = new_state()
    train(state)
    LoopCheckpoints(tmp_path, state, session).save()
    assert "step-00000001 could not be written: " in session.shown
    assert "Training goes on; until the next one" in session.shown


# --- what is refused ---------------------------------------------------------------------


def test_another_model_is_refused_and_nothing_has_changed(tmp_path: Path, session: Session) -> None:
    saved(tmp_path, session)
    other = new_state(width=4)
    before = numbers(other)
    with pytest.raises(ConfigurationError, match=r"The checkpoint .*p-00000003 holds .*'layers'"):
        LoopCheckpoints(tmp_path, other, session).load()
    for mine, theirs in zip(numbers(other), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_other_values_are_refused(tmp_path: Path, session: Session) -> None:
    saved(tmp_path, session)
    with pytest.raises(
        ConfigurationError, match=r"\['best', 'losses', 'step'\].*another --job_dir"
    ):
        LoopCheckpoints(tmp_path, new_state(more=1), session).load()


def test_a_damaged_checkpoint_is_refused_with_what_to_remove(
    tmp_path: Path, session: Session
) -> None:
    saved(tmp_path, session)
    (data,) = (tmp_path / "checkpoints").glob("step-*/variables.data*")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match=r"is damaged .*Remove .*checkpoints to train"):
        LoopCheckpoints(tmp_path, new_state(), session).load()


def test_a_damaged_file_of_the_right_size_is_refused_too(tmp_path: Path, session: Session) -> None:
    saved(tmp_path, session)
    (data,) = (tmp_path / "checkpoints").glob("step-*/variables.data*")
    data.write_bytes(bytes(b ^ 1 for b in data.read_bytes()))
    with pytest.raises(ConfigurationError, match="is damaged"):
        LoopCheckpoints(tmp_path, new_state(), session).load()


def test_another_version_is_refused(tmp_path: Path, session: Session) -> None:
    saved(tmp_path, session)
    (path,) = (tmp_path / "checkpoints").glob("step-*/state.json")
    content = json.loads(path.read_text())
    content["loop"]["version"] = 99
    path.write_text(json.dumps(content))
    (path.parent / manifest.NAME).unlink()
    manifest.write(path.parent, FORMAT_VERSION)
    with pytest.raises(ConfigurationError, match=r"step-00000003 holds a state of version 99"):
        LoopCheckpoints(tmp_path, new_state(), session).load()


def test_checkpoints_of_fit_and_of_a_loop_are_told_apart(tmp_path: Path, session: Session) -> None:
    origin = Origin("global", 0, 8, 8, seed=0, num_examples=8)
    fit = CheckpointManager(tmp_path / "fit" / "checkpoints", origin)
    fit.save(1, [tf.Variable(1.0)], {})
    with pytest.raises(ConfigurationError, match="written by fit or Trainer"):
        LoopCheckpoints(tmp_path / "fit", new_state(), session).load()
    saved(tmp_path / "loop", session)
    loop = CheckpointManager(tmp_path / "loop" / "checkpoints", origin)
    with pytest.raises(ConfigurationError, match="written by a training loop of your own"):
        loop.check_newest([tf.Variable(1.0)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_every_s": 0},
        {"checkpoint_every_s": "60"},
        {"checkpoint_every_n_commits": 1.5},
        {"checkpoint_every_n_commits": True},
    ],
)
def test_an_interval_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name}=.*expected a positive"):
        elastic.ElasticState(**wrong)
