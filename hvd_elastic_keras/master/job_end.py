"""The end of a job: its result, and the wait for its workers to leave."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Mapping

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.goodput import rounded
from hvd_elastic_keras.launchers.base import Launcher
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.reasons import has_exited_well
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
    """The workers whose logs tell most about a failure: the first one to fail, then the last.
    Without those whose programs came to their end: their logs tell of no error."""
    training: int = 1
    """The last training; `step` counts in it."""
    refused: bool = False
    """Whether a worker found a wrong configuration; `reason` says what is wrong."""
    spent_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds spent on each part of the job, such as training; see `goodput.Part`."""

    @property
    def has_trained(self) -> bool:
        """Whether the workers of this start have taken a step, as far as is known."""
        return self.training > 1 or self.step > 0


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
        failed_workers=tuple(
            dict.fromkeys(f.worker_id for f in failures if f and not has_exited_well(f))
        ),
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


class Stopping:
    """Ends a job early: after the current step, or at once if the terminal asks twice.

    Args:
      end: the end of the job.
      grace_s: seconds for the workers to leave after a request.
      ask: has the state machine end the job after the current step.
      say: shows a line.
    """

    def __init__(
        self,
        end: asyncio.Future[act.EndJob],
        grace_s: float,
        ask: Callable[[act.StopJob], None],
        say: Callable[[str], None],
    ) -> None:
        self._end = end
        self._grace_s = grace_s
        self._ask = ask
        self._say = say
        self.is_requested = False
        self.is_at_once = False
        self._signalled = False
        """Whether somebody at the launcher's terminal has asked the job to stop."""

    def on_signal(self, reason: str) -> None:
        """Ends the job after the current step; a second call ends it at once."""
        if self._signalled:
            self._end_now(reason)
            return
        self._signalled = True
        self.after_step(reason)
        self._say(f"{reason}: stopping after the current step (ask again to stop at once)")

    def after_step(self, reason: str) -> None:
        """Ends the job after the current step, unless that has been asked for already."""
        if not self.is_requested:
            self._ask(act.StopJob(reason))
            self.limit(reason)

    def limit(self, reason: str) -> None:
        """Ends the job after the time of grace, if it has not ended by then."""
        self.is_requested = True
        asyncio.get_running_loop().call_later(
            self._grace_s, self._end_now, f"{reason}; workers did not leave in time"
        )

    def _end_now(self, reason: str) -> None:
        self.is_at_once = True
        if not self._end.done():
            self._end.set_result(act.EndJob(act.Outcome.FAILED, reason))


POLL_S = 0.02
AFTER_KILL_S = 10.0


async def clear_away(
    launcher: Launcher, told: Collection[str], grace_s: float, at_once: Callable[[], bool]
) -> None:
    """Waits for the workers to leave, and kills those that do not within `grace_s` seconds.

    Workers that are not in `told` are still starting and do not know that the job has ended: they
    are killed first. As soon as `at_once()` is true, the other workers are killed, too.
    """
    deadline = time.monotonic() + grace_s
    for worker_id in launcher.running():
        if worker_id not in told:
            launcher.kill(worker_id)
    while launcher.running() and time.monotonic() < deadline and not at_once():
        await asyncio.sleep(POLL_S)
    for worker_id in launcher.running():
        launcher.kill(worker_id)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_all_gone(launcher), timeout=AFTER_KILL_S)


async def _all_gone(launcher: Launcher) -> None:
    while launcher.running():
        await asyncio.sleep(POLL_S)
