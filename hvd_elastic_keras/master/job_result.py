"""The result of a job, for the command that has started it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.goodput import rounded
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.master.machine.time_spent import passed


@dataclasses.dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    succeeded: bool
    stopped: bool
    """Whether the job ended early because somebody asked for it."""
    reason: str
    step: int
    failed_workers: tuple[str, ...]
    """The workers whose logs tell most about a failure: the first one to fail, then the last."""
    training: int = 1
    """The last training; `step` counts in it."""
    refused: bool = False
    """Whether a worker found a wrong configuration; `reason` says what is wrong."""
    spent_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds spent on each part of the job, such as training; see `goodput.Part`."""


def concluded(
    state: State, end: act.EndJob, stop_requested: bool, recorded_step: int, now: float
) -> tuple[JobResult, events.JobFinished]:
    """Returns the result of a job, and its last entry for `events.jsonl`.

    Args:
      stop_requested: whether somebody has asked the job to stop.
      recorded_step: the newest step that rank 0 has written an entry about.
    """
    step = max(state.training.newest_step, recorded_step)
    stopped = stop_requested and end.outcome is not act.Outcome.FINISHED
    failures = state.restarts.first_failure, state.restarts.last_failure
    result = JobResult(
        succeeded=end.succeeded,
        stopped=stopped,
        reason=end.reason,
        step=step,
        failed_workers=tuple(dict.fromkeys(f.worker_id for f in failures if f)),
        training=state.training.number,
        refused=end.outcome is act.Outcome.REFUSED,
        spent_s=rounded(passed(state, now)),
    )
    entry = events.JobFinished(
        status="stopped" if stopped else "finished" if end.succeeded else "failed",
        reason=end.reason,
        training=result.training,
        step=step,
        spent_s=dict(result.spent_s),
    )
    return result, entry
