"""What a job does before its first worker, and where it cannot write its timeline."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from pathlib import Path

import pytest

from hvd_elastic_keras.cli import conclusion, job_request, plan, run_job
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.master import journal
from hvd_elastic_keras.master.job_end import JobResult
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.state.checkpoint import manifest


def request(job_dir: Path, target: Path | None = None, **changes: int) -> job_request.JobRequest:
    """A job of a model that does not exist."""
    training = TrainingConfig(global_batch_size=64, micro_batch_size=32)
    return job_request.JobRequest(
        JobConfig(**changes),
        JobSpec(training, "nowhere.py"),
        [],
        job_dir,
        "nowhere",
        job_request.OutputRequest(target),
    )


@pytest.mark.parametrize("target", ["missing/x.json", ".", "/proc/x.json", "/dev/null"])
def test_a_timeline_that_cannot_be_written_is_refused_and_leaves_nothing(
    target: str, tmp_path: Path
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    trace = old / files.TIMELINES / "round-000001.json"
    trace.parent.mkdir(parents=True)
    trace.write_text("[]")
    for job_dir in (new, old):
        with pytest.raises(ConfigurationError, match=r"--timeline=.* cannot be written"):
            asyncio.run(run_job.run_job(request(job_dir, tmp_path / target)))
    assert not new.exists()
    assert trace.read_text() == "[]"


def test_results_are_shown_if_the_timeline_cannot_be_written_at_the_end(tmp_path: Path) -> None:
    output = io.StringIO()
    (tmp_path / files.EVENTS).write_text("")
    conclusion._write_timeline(Path("/proc/x.json"), tmp_path, Console(output))
    assert output.getvalue().startswith("[elastic] warning: the timeline cannot be written to ")
    assert len(output.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("num_workers", "text"),
    [
        (2, "2 micro-batches of 32; starting 2 workers\n"),
        (3, "starting 3 workers, of which 1 will wait as a spare\n"),
        (5, "starting 5 workers, of which 3 will wait as spares\n"),
    ],
)
def test_workers_beyond_the_micro_batches_are_announced_as_spares(
    num_workers: int, text: str, tmp_path: Path
) -> None:
    found = dict.fromkeys(
        ("parameters", "num_examples", "num_validation_examples", "steps_per_epoch"), 1
    )
    what = request(tmp_path, num_workers=num_workers)
    assert f"{list(plan.lines_at_start(what, found))[-1]}\n".endswith(text)


@pytest.mark.parametrize(("found", "useful"), [(32, "2 workers"), (64, "1 worker")])
def test_workers_that_the_chosen_cut_has_no_work_for_are_refused(
    found: int, useful: str, tmp_path: Path
) -> None:
    what = request(tmp_path, num_workers=3, min_workers=3)
    assert what.spec is not None
    spec = JobSpec(TrainingConfig(global_batch_size=64), "nowhere.py")
    open_cut = dataclasses.replace(what, spec=spec)
    open_cut.check_workers_fit()
    assert open_cut.most_members == 3, "as long as nobody knows"
    chosen = dataclasses.replace(open_cut, found_micro_batch_size=found)
    with pytest.raises(ConfigurationError, match=f"no more than {useful} can.*_size=16"):
        chosen.check_workers_fit()


def test_the_term_of_a_start_is_later_than_those_of_all_checkpoints_in_the_directory(
    tmp_path: Path,
) -> None:
    """They may have been copied there, or the journal is lost: none may forbid to write others."""
    for training, term in (("", 3), ("training-2", 7)):
        checkpoint = tmp_path / training / files.CHECKPOINTS / "step-00000004"
        checkpoint.mkdir(parents=True)
        manifest.write(checkpoint, version=3, term=term)
    (tmp_path / files.CHECKPOINTS / "step-00000005").mkdir()
    console = Console(io.StringIO())
    known = run_job.newest_term_of_checkpoints(tmp_path)
    assert journal.Term(tmp_path, (), console, known).number == 8


@pytest.mark.parametrize(
    ("losses", "lines"),
    [
        ({"loss": [0.5, 0.25], "val_loss": [1.0, 1.0]}, []),
        (
            {"loss": [0.5, float("nan")], "accuracy": [0.5, 0.1], "val_loss": [1.0, float("inf")]},
            ["[elastic] warning: the training has ended with loss nan, val_loss inf"],
        ),
    ],
)
def test_a_job_that_ends_with_a_loss_that_is_no_number_says_so(
    losses: dict[str, list[float]], lines: list[str], tmp_path: Path
) -> None:
    files.write_json(tmp_path / files.HISTORY, {"epoch": [0, 1], "history": losses})
    screen = io.StringIO()
    result = JobResult(True, False, "finished", 12, ())
    assert conclusion.conclude(Console(screen), request(tmp_path), result, []) == 0
    assert screen.getvalue().splitlines() == [
        *lines,
        f"[elastic] finished after 12 steps; results: {tmp_path}",
    ]
