"""`elastic.run`: calls the user's training function in every round until the training is done.

    until the function has returned and all workers know it:
        enter a round            wait for a place, hvd.init()
        call reset callbacks     they see the rank and size of the round
        sync                     if a worker is behind rank 0
        call the function        until it returns, the membership changes, or a collective fails

The order within a round follows `run_fn` in `horovod/common/elastic.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_keras.api.elastic_loop.elastic_checkpoints import LoopCheckpoints
from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState
from hvd_elastic_keras.api.elastic_loop.retracing import TracedAnew
from hvd_elastic_keras.api.fit_in_elastic_run import FitsInside
from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    ConfigurationError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.sources.iterators import deleted_in_background
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard, LeaveReason
from hvd_elastic_keras.loop.observers.records import CommitRecords
from hvd_elastic_keras.loop.round_driver import FailedAt, drive
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.options import SPEED
from hvd_elastic_keras.worker.rounds import ProcessRounds, rounds_of_process
from hvd_elastic_keras.worker.session import EntryReport

log = logging.getLogger(__name__)

T = TypeVar("T")


def run(function: Callable[..., T]) -> Callable[..., T | None]:
    """Makes a training function elastic. Can be used as a decorator.

    `function(state, *args, **kwargs)` is called again in every round and continues from the values
    in `state`. The same script runs alone, with one worker, and under
    `python -m hvd_elastic_keras.run`.

    - If a collective fails because a worker is gone, the state goes back to the last commit.
    - If the membership is to change, the round ends when all workers meet in `state.commit()` or
      `state.check_host_updates()`. Nothing is lost.
    - When the function has returned on all workers of the round, the wrapper returns. Horovod stays
      initialised, so that rank and size keep the values of the last round. A worker that was behind
      when others had finished takes their state and returns None without calling the function
      again.
    - If the job had finished this training before the worker joined, the wrapper returns at once,
      with the result on disk or None. The worker is then in no round, so that `hvd.rank()` raises.

    A worker that has to leave before the end (SIGTERM, `ctl remove`) ends its process with exit
    code 0.

    Raises (the wrapper):
      ConfigurationError: the first argument is not an elastic state.
      MasterUnreachableError: the launcher is gone.
      CollectiveFailedError: the same step fails again and again although no worker is lost.
    """

    @functools.wraps(function)
    def wrapper(state: ElasticState, *args: Any, **kwargs: Any) -> T | None:
        if not isinstance(state, ElasticState):
            raise ConfigurationError(
                f"The function of elastic.run was called with a {type(state).__name__} first, "
                "expected an elastic.ElasticState."
            )
        call = functools.partial(function, state, *args, **kwargs)
        loop = ElasticLoop(rounds_of_process(), state, call, TracedAnew(function))
        result: T | None = loop.run()
        return result

    return wrapper


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What a training that this worker has joined leaves on disk."""

    checkpoints: LoopCheckpoints
    guard: CheckpointGuard
    records: CommitRecords

    @classmethod
    def of(cls, rounds: ProcessRounds, state: ElasticState) -> _Kept:
        membership, session = rounds.membership, rounds.session
        job_dir = membership.environment.job_path if membership.environment else None
        return cls(
            LoopCheckpoints(
                job_dir, state, session, options=env.run_options(), term=membership.term
            ),
            CheckpointGuard(job_dir, membership.term),
            CommitRecords(session.reporter, session.training),
        )


@dataclasses.dataclass
class ElasticLoop:
    """Drives one call of an elastic function from its first round to its end."""

    rounds: ProcessRounds
    state: ElasticState
    function: Callable[[], Any]
    traced: TracedAnew
    _kept: _Kept = dataclasses.field(init=False)
    _place: Assignment | None = None
    """The place in the present round, or in the last one."""
    _rounds_entered: int = 0
    _warned: bool = False
    _result: Any = None
    _fits: FitsInside = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._fits = FitsInside(self.rounds, self.state, self._after_step_of_fit)

    def run(self) -> Any:
        """Calls the function until all workers have finished, and returns its result."""
        self.state.begin(self._after_commit)
        self.rounds.join()
        self._kept = _Kept.of(self.rounds, self.state)
        self.rounds.leave()  # the script may have initialised Horovod already
        try:
            with deleted_in_background():
                drive(self)
        except WorkerLeavingError as error:
            self.rounds.membership.end_process(error)
        except TrainingOverError as error:
            log.info("the function is not called: %s", error)
            self._kept.checkpoints.load_result()
            return self._kept.checkpoints.result
        self.rounds.session.finish()
        return self._result

    @property
    def _is_root(self) -> bool:
        return self._place is not None and self._place.rank == 0

    # --- rounds, see `Driven` ------------------------------------------------------------

    def enter(self, failure: str) -> Assignment:
        """Reports the last commit and waits for a place in the next round."""
        state = self.state
        report = EntryReport(state.exists, state.progress, state.num_commits, failure)
        return self.rounds.session.enter(report)

    def on_order_to_leave(self, reason: LeaveReason) -> None:
        """Saves the state on rank 0, unless the job may go on without this worker."""
        place = self._place
        if place and self._is_root and self._kept.guard.lets_write(reason, place.round):
            self._kept.checkpoints.save()

    def take_part(self, place: Assignment) -> bool:
        """Calls the function in a round. Returns whether all workers have finished."""
        try:
            with self._failures_told_apart(place):
                self.rounds.start(place)
                self._prepare(place)
                self._train_to_the_end(place)
        except HostsUpdatedInterrupt:
            log.info("round %d ends after commit %d", place.round, self.state.num_commits)
            return False
        return True

    def failed_at(self) -> FailedAt:
        """Returns the last commit: the state is at this commit, or will go back to it."""
        return FailedAt(
            self.state.progress,
            what="The function of elastic.run",
            where=f" after commit {self.state.num_commits}",
            whose="the function itself",
        )

    def restore(self, error: CollectiveFailedError) -> None:
        """Goes back to the last commit."""
        self.state.restore()

    def leave(self, place: Assignment, *, finished: bool) -> None:
        """Shuts Horovod down at once, so that other workers notice an error in the user's code."""
        if not finished:  # after the last round, the script may still ask for rank and size
            self.rounds.leave()

    # --- what happens in a round -----------------------------------------------------------

    def _after_commit(self) -> None:
        if self._is_root:
            self._kept.checkpoints.after_commit()
            self._kept.records.after_commit(self.state.num_commits)
        text = self.traced.first_commit()
        is_new = self._rounds_entered == 1
        if text and (self._is_root or is_new):
            environment = self.rounds.membership.environment
            who = f"{environment.worker_id}: " if environment else ""
            self.rounds.session.reporter.show(f"warning: {who}{text}\n")

    def _after_step_of_fit(self, keep: Callable[[], None]) -> None:
        """Writes a checkpoint if one is due, between two steps of `fit` inside the function.

        Every step of `fit` is as safe as a commit.
        """
        self._kept.records.leave_to_fit()
        if self._is_root and self._kept.checkpoints.is_due():
            keep()
            self._kept.checkpoints.after_commit()

    def _prepare(self, place: Assignment) -> None:
        self._rounds_entered += 1
        self._place = place
        self._kept.records.begin_round()
        if self._is_root and not place.root_has_state:
            self._kept.checkpoints.load()
        if not self.state.finished:
            with self._fits.offered(resets=True):
                self.state.on_reset()
        if place.sync and place.size > 1:
            self.state.sync()
        else:
            self.state.keep_without_sync()
        session = self.rounds.session
        session.reporter.at("training", self.state.num_commits, self.state.progress)
        session.running(self.state.num_commits, "training")
        self._warn(place)
        where = (place.round, place.rank, place.size, self.state.num_commits)
        log.info("round %d: rank %d of %d at commit %d", *where)

    def _warn(self, place: Assignment) -> None:
        """Warns of variables that cannot be sent, and of options that have no effect here."""
        options = env.run_options()
        asked = {
            "--audit": options.audit,
            "--balance=speed": options.balance == SPEED,
            "--deterministic": options.deterministic,
        }
        given = ", ".join(flag for flag, is_asked in asked.items() if is_asked)
        if given and place.rank == 0 and not self._warned:
            self.rounds.session.reporter.tell(
                f"warning: {given} has no effect on a training loop of your own (elastic.run)"
            )
        lost = self.state.unsendable_warning()
        if lost and place.rank == 0 and not place.root_has_state and not self._warned:
            self.rounds.session.reporter.tell(f"warning: {lost}")
        self._warned = True

    def _train_to_the_end(self, place: Assignment) -> None:
        state = self.state
        if state.finished:
            log.info("the function has returned on a worker that is further: not called again")
            if not place.root_has_state:  # in an earlier run of the job
                self._kept.checkpoints.load_result()
                self._result = self._kept.checkpoints.result
        else:
            if place.root_has_state:
                self.traced.begin_round()
            with self._fits.offered():
                self._result = self.function()
            state.finish()
            if self._is_root:
                self._kept.records.end()
        if self._is_root:
            self._kept.checkpoints.save(self._result)
        self.rounds.session.reporter.at("finishing", state.num_commits, state.progress)
        if self.rounds.size > 1:
            self.rounds.communicator.barrier("elastic_state.finish")

    @contextlib.contextmanager
    def _failures_told_apart(self, place: Assignment) -> Iterator[None]:
        """Turns failures of the user's collectives into `CollectiveFailedError`.

        Errors are told apart by type, as everywhere in this package. If this worker is alone, no
        collective can fail.
        """
        communicator = self.rounds.communicator
        try:
            with communicator.collective() if place.size > 1 else contextlib.nullcontext():
                yield
        except HorovodInternalError as error:
            raise CollectiveFailedError(f"a collective failed: {error}") from error
