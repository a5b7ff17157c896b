"""How a job ended, for the command that has started it."""

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
    """Ended early because somebody asked for it."""
    reason: str
    step: int
    failed_workers: tuple[str, ...]
    """Whose logs tell most about a failure, the first one to fail before the last one."""
    training: int = 1
    """The last training; `step` counts in it."""
    refused: bool = False
    """Whether `reason` is what a worker found to be configured wrongly."""
    spent_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What the time was spent on."""


def concluded(
    state: State, end: act.EndJob, stop_requested: bool, recorded_step: int, now: float
) -> tuple[JobResult, events.JobFinished]:
    """The result of a job, and its last entry.

    Args:
      stop_requested: whether somebody has asked the job to stop.
      recorded_step: the newest one that rank 0 has written an entry about.
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
