"""Where the course of a job is written for TensorBoard."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_elastic_keras.cli import curves
from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.observe.console import Console

HERE = socket.gethostname()
ROUND = events.RoundRunning(
    round=1,
    training=1,
    world_size=2,
    members=["w0", "w1"],
    micro_batches=[1, 1],
    reason="w0, w1 start",
    step=0,
    stall_s=0.0,
    steps_lost=0,
)
STEPS = events.StepsTaken(
    training=1, epoch=0, step=5, metrics={"loss": 0.5}, examples_per_s=1.0, step_s=1.0
)
FINISHED = events.JobFinished(status="finished", reason="", training=1, step=5)


def used(directory: Path, host: str = HERE) -> events.TensorBoardUsed:
    return events.TensorBoardUsed(directory=str(directory), host=host)


def written(job_dir: Path, *entries: events.Entry) -> str:
    """Lets a job happen; returns what people are told."""
    output = io.StringIO()
    hear = curves.beside_users(job_dir, Console(output))
    for number, entry in enumerate([*entries, FINISHED]):
        hear(1_700_000_000.0 + number, entry)
    return output.getvalue()


def curve(directory: Path, name: str) -> list[tuple[int, float]]:
    return [(e.step, e.value) for e in EventAccumulator(str(directory)).Reload().Scalars(name)]


def test_it_is_a_run_beside_those_of_the_users_callback(tmp_path: Path) -> None:
    own = tmp_path / "own"
    told = written(tmp_path / "job", ROUND, used(own), STEPS)
    assert told == f"[elastic] for TensorBoard: tensorboard --logdir={own}\n"
    assert curve(own / "elastic", "training/loss") == [(5, 0.5)]
    assert curve(own / "elastic", "job/workers") == [(0, 2.0)], "from the beginning on"


def test_what_the_callback_writes_on_another_host_is_left_alone(tmp_path: Path) -> None:
    own, job = tmp_path / "own", tmp_path / "job"
    written(job, ROUND, used(own, host="elsewhere"), STEPS)
    assert not own.exists()
    assert curve(job / files.TENSORBOARD, "training/loss") == [(5, 0.5)]


def test_without_such_a_callback_nothing_is_written(tmp_path: Path) -> None:
    assert written(tmp_path, ROUND, STEPS) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_takes_over_goes_on_writing(tmp_path: Path) -> None:
    own = tmp_path / "own"
    line = {"seq": 1, "time": 1.0, "event": "tensorboard_used", **events.fields_of(used(own))}
    (tmp_path / files.EVENTS).write_text(json.dumps(line) + "\n")
    written(tmp_path, events.MasterRestarted(term=2, workers=["w0"]), STEPS)
    assert curve(own / "elastic", "training/loss") == [(5, 0.5)]
