"""The parts that a training loop works with."""

from __future__ import annotations

import dataclasses

import keras

from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.course import Course
from hvd_elastic_keras.loop.observer import Observers
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.loop.shares import Shares
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step.world import World
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.reporter import Reporter
from hvd_elastic_keras.worker.rounds import Rounds
from hvd_elastic_keras.worker.session import Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopParts:
    """The parts that a training loop works with, the same in all its rounds.

    Attributes:
      evaluate: the phase of the evaluation, if there is one.
      trains: whether anything is trained. If not, `train` is the phase of the evaluation, too, and
        the loop begins with the evaluation.
      course: how far the training goes.
      shares: how the rows of a batch are divided among the workers; one of the policies.
      observers: the policies and observers, which are told what the loop does.
    """

    model: keras.Model
    rounds: Rounds
    state: RunState
    train: PhaseRunner
    evaluate: PhaseRunner | None
    callbacks: CallbackRunner
    world: World
    course: Course
    shares: Shares
    observers: Observers
    trains: bool = True

    @property
    def session(self) -> Session:
        """The membership of this worker in the training."""
        return self.rounds.session

    @property
    def communicator(self) -> Communicator:
        """Horovod's runtime."""
        return self.rounds.communicator

    @property
    def reporter(self) -> Reporter:
        """Tells the master, the event log and people what this worker does."""
        return self.session.reporter

    @property
    def schedule(self) -> Schedule:
        """How long the training is, and when it evaluates."""
        return self.course.schedule
