"""What stands at the bottom of a launcher's terminal."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe.live_console import LiveRegion
from hvd_elastic_keras.settings.job_spec import EVALUATE, PREDICT

PROGRESS = Progress(
    epoch=2,
    epochs=40,
    step=3,
    steps=12,
    metrics={"accuracy": 0.5, "loss": 1.25, "top_5": 0.875},
    examples_per_s=1234.0,
    workers=3,
    left_s=75.0,
)


def round_running(size: int, reason: str) -> events.RoundRunning:
    return events.RoundRunning(
        round=1,
        training=1,
        world_size=size,
        members=[f"w{n}" for n in range(size)],
        micro_batches=[1] * size,
        reason=reason,
        step=0,
        stall_s=0.2,
        steps_lost=0,
    )


def seen(region: LiveRegion, width: int = 80, now_s: float = 100.0) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=width, color_system=None).print(region.picture(width, now_s))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_before_the_first_step_it_says_what_is_waited_for() -> None:
    region = LiveRegion(began_s=90.0)
    assert seen(region) == ["checking what is to be trained  0:10"]
    region.hear(91.0, events.JobStarted(job_dir="jobs/x", model="x", num_workers=2, training={}))
    assert seen(region) == ["starting workers  0:10"]
    region.hear(92.0, events.WorkerStarted(worker_id="w0", host="localhost", pid=7))
    region.hear(92.0, events.WorkerStarted(worker_id="w1", host="localhost", pid=8))
    assert seen(region) == ["starting 2 workers  0:10"]
    region.hear(99.0, round_running(2, "w0, w1 start"))
    assert seen(region) == ["2 workers: before the first step  0:10"]


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (EVALUATE, "checking what is to be evaluated  0:10"),
        (PREDICT, "checking what is to be predicted  0:10"),
        ("", "starting  0:10"),
    ],
)
def test_a_job_that_does_not_train_is_not_said_to(job: str, text: str) -> None:
    assert seen(LiveRegion(began_s=90.0, job=job)) == [text]


def test_an_evaluation_has_a_bar_of_its_own() -> None:
    region = LiveRegion(began_s=0.0, job=EVALUATE)
    region.take(msgspec.structs.replace(PROGRESS, what="evaluating", epoch=1, epochs=1))
    bar, numbers = seen(region)
    assert bar.startswith("evaluating  ━━━━")
    assert bar.endswith("  3/12  1:15 left")
    assert numbers.startswith("loss 1.2500  accuracy 0.5000")


def test_predictions_of_unknown_number_have_no_bar_and_no_metrics() -> None:
    region = LiveRegion(began_s=0.0, job=PREDICT)
    progress = msgspec.structs.replace(PROGRESS, what="predicting", steps=None, left_s=None)
    region.take(msgspec.structs.replace(progress, metrics={}))
    assert seen(region) == ["predicting  step 3", "1,234 examples/s  3 workers"]


def test_it_shows_epoch_step_loss_metrics_speed_workers_and_time_left() -> None:
    region = LiveRegion(began_s=0.0)
    region.take(PROGRESS)
    bar, numbers = seen(region)
    assert bar.startswith("epoch 2/40  ━━━━")
    assert bar.endswith("  3/12  1:15 left")
    assert numbers == "loss 1.2500  accuracy 0.5000  top_5 0.8750  1,234 examples/s  3 workers"


def test_the_bar_is_as_long_as_the_part_of_the_epoch_that_is_done() -> None:
    region = LiveRegion(began_s=0.0)
    output = io.StringIO()
    region.take(msgspec.structs.replace(PROGRESS, step=6, left_s=None, epochs=None))
    terminal = Console(file=output, width=46, force_terminal=True, color_system=None)
    terminal.print(region.picture(46, 0.0))
    assert output.getvalue().splitlines()[0] == f"epoch 2  {'━' * 15}╸{' ' * 15}  6/12"


def test_the_time_left_goes_slowly_but_ends_at_once() -> None:
    region = LiveRegion(began_s=0.0)
    for left_s, shown in ((75.0, "1:15"), (175.0, "1:25"), (0.0, "0:00")):
        region.take(msgspec.structs.replace(PROGRESS, left_s=left_s))
        assert seen(region)[0].endswith(f"  {shown} left")


def test_without_a_known_end_there_is_no_bar() -> None:
    region = LiveRegion(began_s=0.0)
    region.take(msgspec.structs.replace(PROGRESS, epochs=None, steps=None, left_s=None))
    assert seen(region)[0] == "epoch 2  step 3"


@pytest.mark.parametrize("width", [1, 10, 20, 30, 40, 60, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    region = LiveRegion(began_s=0.0)
    region.hear(1.0, round_running(3, "w0, w1, w2 start"))
    region.take(PROGRESS)
    region.hear(2.0, round_running(2, "w1 was killed by SIGKILL"))
    lines = seen(region, width)
    assert len(lines) == 3
    assert all(cell_len(line) <= width for line in lines)


def test_on_a_narrow_terminal_loss_workers_and_speed_come_before_other_metrics() -> None:
    region = LiveRegion(began_s=0.0)
    region.take(PROGRESS)
    assert seen(region, 40)[1] == "loss 1.2500  1,234 examples/s  3 workers"
    assert seen(region, 30)[1] == "loss 1.2500  3 workers"


def test_the_newest_change_stands_there_with_its_age() -> None:
    region = LiveRegion(began_s=0.0)
    region.hear(1.0, round_running(3, "w0, w1, w2 start"))
    region.take(PROGRESS)
    assert len(seen(region)) == 2, "a start is no change"
    region.hear(30.0, events.RoundOpened(round=2, reason="w1 was killed by SIGKILL"))
    assert seen(region, now_s=30.5)[-1].endswith("the workers change: w1 was killed by SIGKILL")
    region.hear(30.0, events.WorkerStarted(worker_id="w3", host="localhost", pid=9))
    region.hear(31.0, round_running(2, "w1 was killed by SIGKILL"))
    region.take(msgspec.structs.replace(PROGRESS, workers=2))
    lines = seen(region, now_s=106.0)
    assert lines[-1] == "1:15 ago: 3 → 2 workers: w1 was killed by SIGKILL"
    assert lines[1].endswith("2 workers, 1 starting")


def test_a_job_that_stops_says_so_whatever_its_workers_do() -> None:
    region = LiveRegion(began_s=0.0)
    region.hear(1.0, round_running(2, "w0, w1 start"))
    region.hear(50.0, events.JobStopping(reason="got SIGTERM"))
    region.hear(51.0, round_running(1, "w1 leaves"))
    assert seen(region)[-1] == "0:50 ago: stopping: got SIGTERM"


def test_values_of_an_evaluation_stay_until_the_next_one() -> None:
    region = LiveRegion(began_s=0.0)
    metrics = {"loss": 1.0, "val_loss": 0.5}
    region.take(msgspec.structs.replace(PROGRESS, metrics=metrics, ended=True))
    region.take(msgspec.structs.replace(PROGRESS, metrics={"loss": 0.25}))
    assert seen(region)[1].startswith("loss 0.2500  val_loss 0.5000  ")


def test_a_loss_that_is_no_number_is_shown() -> None:
    region = LiveRegion(began_s=0.0)
    region.take(msgspec.structs.replace(PROGRESS, metrics={"loss": None}))
    assert seen(region)[1].startswith("loss nan  ")
