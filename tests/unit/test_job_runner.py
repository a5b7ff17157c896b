"""What a job does before its first worker, and where it cannot write its timeline."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from hvd_elastic_keras import files, job_runner
from hvd_elastic_keras.config import JobConfig, JobSpec, TrainingConfig
from hvd_elastic_keras.console import Console
from hvd_elastic_keras.errors import ConfigurationError


def request(job_dir: Path, target: Path | None = None, **changes: int) -> job_runner.JobRequest:
    """A job of a model that does not exist."""
    training = TrainingConfig(global_batch_size=64, micro_batch_size=32)
    return job_runner.JobRequest(
        JobConfig(**changes), JobSpec(training, "nowhere.py"), [], job_dir, "nowhere", target
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
            asyncio.run(job_runner.run_job(request(job_dir, tmp_path / target)))
    assert not new.exists()
    assert trace.read_text() == "[]"


def test_results_are_shown_if_the_timeline_cannot_be_written_at_the_end(tmp_path: Path) -> None:
    output = io.StringIO()
    (tmp_path / files.EVENTS).write_text("")
    job_runner._write_timeline(Path("/proc/x.json"), tmp_path, Console(output))
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
    output = io.StringIO()
    found = dict.fromkeys(
        ("parameters", "num_examples", "num_validation_examples", "steps_per_epoch"), 1
    )
    what = request(tmp_path, num_workers=num_workers)
    job_runner._describe(Console(output), what, found)
    assert output.getvalue().endswith(text)
