"""What TensorBoard itself reads from the files that the master writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_elastic_keras.common import events
from hvd_elastic_keras.observe.tensorboard import CHANGES, TensorBoardLog


def steps(step: int, loss: float, training: int = 1) -> events.StepsTaken:
    return events.StepsTaken(
        training=training,
        epoch=0,
        step=step,
        metrics={"loss": loss},
        examples_per_s=100.0,
        step_s=0.5,
        input_s=0.125,
        learning_rate=0.25,
    )


def running(step: int, members: list[str], reason: str) -> events.RoundRunning:
    return events.RoundRunning(
        round=step,
        training=1,
        world_size=len(members),
        members=members,
        micro_batches=[4 // len(members)] * len(members),
        reason=reason,
        step=step,
        stall_s=0.75,
        steps_lost=0,
    )


FINISHED = events.JobFinished(status="finished", reason="", training=1, step=30)


class Job:
    """A job whose entries a test makes up, a second apart."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.warnings: list[str] = []
        self.log = TensorBoardLog(directory, self.warnings.append)
        self._now = 1_700_000_000.0

    def happens(self, *entries: events.Entry) -> None:
        for entry in entries:
            self._now += 1.0
            self.log.hear(self._now, entry)

    def curve(self, name: str, run: str = ".") -> list[tuple[int, float]]:
        return [(e.step, e.value) for e in self._read(run).Scalars(name)]

    def names(self) -> set[str]:
        return set(self._read(".").Tags()["scalars"])

    def notes(self) -> list[tuple[int, str]]:
        found = self._read(".").Tensors(f"{CHANGES}/text_summary")
        return [(e.step, e.tensor_proto.string_val[0].decode()) for e in found]

    def _read(self, run: str) -> EventAccumulator:
        return EventAccumulator(str(self.directory / run)).Reload()


def test_it_shows_the_training_its_speed_and_who_took_part(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(
        running(0, ["w0", "w1"], "start"),
        steps(10, loss=0.5),
        running(12, ["w1"], "w0 failed"),
        steps(20, loss=0.25),
        events.EpochEnd(epoch=0, step=30, metrics={"val_loss": 0.125, "of_classes": [1, 2]}),
        FINISHED,
    )
    assert job.curve("training/loss") == [(10, 0.5), (20, 0.25)]
    assert job.curve("training/learning_rate") == [(10, 0.25), (20, 0.25)]
    assert job.curve("speed/examples_per_s") == [(10, 100.0), (20, 100.0)]
    assert job.curve("speed/step_s") == [(10, 0.5), (20, 0.5)]
    assert job.curve("speed/input_s") == [(10, 0.125), (20, 0.125)]
    assert job.curve("job/workers") == [(0, 2.0), (12, 1.0)]
    assert job.curve("job/stall_s") == [(12, 0.75)]
    assert job.curve("epoch/val_loss") == [(30, 0.125)]
    (step, words) = job.notes()[-1]
    assert step == 12
    assert "w0 failed" in words


def test_an_evaluation_and_a_loop_of_ones_own_show_what_is_known_of_them(tmp_path: Path) -> None:
    evaluated = msgspec.structs.replace(steps(10, 0.5), epoch=None, input_s=None)
    evaluated = msgspec.structs.replace(evaluated, learning_rate=None)
    job = Job(tmp_path / "evaluation")
    job.happens(running(0, ["w0"], "start"), evaluated, FINISHED)
    assert job.curve("evaluation/loss") == [(10, 0.5)]
    assert job.names() == {"evaluation/loss", "speed/examples_per_s", "speed/step_s", "job/workers"}
    commits = msgspec.structs.replace(evaluated, metrics={}, examples_per_s=None, unit="commit")
    loop = Job(tmp_path / "loop")
    loop.happens(running(0, ["w0"], "start"), commits, FINISHED)
    assert loop.curve("speed/commit_s") == [(10, 0.5)]
    assert loop.names() == {"speed/commit_s", "job/workers"}


def test_of_steps_that_are_taken_again_it_shows_the_last_ones(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(steps(10, 0.5), steps(20, 0.4), steps(30, 0.3), steps(15, 0.45), FINISHED)
    assert [step for step, _ in job.curve("training/loss")] == [10, 15]


def test_a_launcher_that_takes_over_goes_on_with_the_curves(tmp_path: Path) -> None:
    before = Job(tmp_path)
    before.happens(steps(10, 0.5), FINISHED)
    for file in tmp_path.iterdir():  # as if that had been another process
        file.rename(file.with_suffix(".1"))
    after = Job(tmp_path)
    after.happens(steps(20, 0.25), FINISHED)
    assert after.curve("training/loss") == [(10, 0.5), (20, 0.25)]


def test_a_second_training_of_the_script_is_a_run_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(steps(10, 0.5), steps(5, 0.75, training=2), FINISHED)
    assert job.curve("training/loss") == [(10, 0.5)]
    assert job.curve("training/loss", "training-2") == [(5, 0.75)]


def test_what_cannot_be_written_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("a file, not a directory")
    job = Job(in_the_way)
    job.happens(steps(10, 0.5), steps(20, 0.25), FINISHED)
    (warning,) = job.warnings
    assert "TensorBoard" in warning
    assert str(in_the_way) in warning
