"""How far a training goes from its present position: the schedule applied to the data."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step.world import World


@dataclasses.dataclass(frozen=True)
class Left:
    """The rest of a training.

    Attributes:
      steps: steps until the end; None if unknown.
      evaluations: evaluations until the end, as far as they are known. The evaluation of the
        present epoch is included.
    """

    steps: int | None
    evaluations: int


@dataclasses.dataclass(frozen=True)
class Course:
    """Where the training goes next, and how much of it is left."""

    schedule: Schedule
    state: RunState
    train: PhaseRunner
    world: World

    def is_over(self, epochs_done: int) -> bool:
        """Whether the training ends after `epochs_done` epochs."""
        steps_done = self.state.cursor.global_step
        return self.state.marks.stop_agreed or self.schedule.is_over(epochs_done, steps_done)

    def train_phase_is_over(self) -> bool:
        """Whether the present epoch has no further step."""
        steps = self.epoch_steps()
        over = steps is not None and self.state.cursor.step >= steps
        return over or self.state.marks.stop_agreed

    def end_training_phase(self) -> bool:
        """Goes on to the evaluation. Returns whether all data of the epoch have been used."""
        cursor, in_data = self.state.cursor, self.data_steps()
        self.state.unfinished = cursor if self.schedule.cuts(cursor, in_data) else None
        self.go_to(cursor.start_of(Phase.EVALUATE, cursor.epoch))
        return cursor.step == in_data and not self.train.input.cut_off(cursor.epoch)

    def end_epoch(self) -> bool:
        """Goes on to the next epoch. Returns whether there is none."""
        if self._goes_on_within_epoch():
            return False
        epochs_done = self.state.cursor.epoch + 1
        over = self.is_over(epochs_done)
        self.go_to(self.state.cursor.start_of(Phase.FINISH if over else Phase.TRAIN, epochs_done))
        return over

    def reopen_if_longer(self) -> None:
        """Reopens a finished training, loaded from a checkpoint, if it is to be longer now.

        A training that a callback has ended stays finished.
        """
        cursor = self.state.cursor
        if cursor.phase is not Phase.FINISH:
            return
        if self._goes_on_within_epoch():
            self.state.marks.ended = False
        elif not self.is_over(cursor.epoch):
            self.state.cursor = cursor.start_of(Phase.TRAIN, cursor.epoch)
            self.state.marks.ended = False

    def _goes_on_within_epoch(self) -> bool:
        """Goes back to an epoch that `steps` has cut off, if there are to be more steps now.

        `on_epoch_begin` of this epoch is not called again, as it may change the learning rate. The
        evaluation and `on_epoch_end` come again, at the real end of the epoch.
        """
        rest = self.state.unfinished
        if rest is None or self.is_over(rest.epoch):
            return False
        self.state.unfinished = None
        self.state.marks.evaluation_begun = -1
        self.go_to(rest)
        return True

    def go_to(self, cursor: Cursor) -> None:
        """Goes to a position to which all workers go.

        It counts as progress: a worker that does not go there, because it does not know yet that
        the phase has ended, is behind, and a sync brings it up to date.
        """
        progress = self.state.cursor.progress + 1
        self.state.cursor = dataclasses.replace(cursor, progress=progress)

    def finish_data(self, evaluate: PhaseRunner | None) -> None:
        """Leaves the data in the same condition on all workers, however much this one has read.

        The next training may use the same data, which go on from there. For example, a shuffled
        dataset has other seeds for each iterator, and a `PyDataset` may change at the end of an
        epoch.
        """
        marks, epochs = self.state.marks, self.state.cursor.epoch
        if marks.raised is not None and marks.epoch_begun == epochs:  # within an epoch
            self.train.input.stop(epochs)
            epochs += 1
        for runner in (self.train, evaluate):
            if runner is not None:
                runner.input.finish(epochs)

    def epoch_steps(self) -> int | None:
        """Steps of the present epoch; None if unknown."""
        return self.schedule.steps_of_epoch(self.state.cursor, self.data_steps())

    def left(self) -> Left:
        """Returns the rest of the training."""
        cursor = self.state.cursor
        following = cursor.start_of(Phase.TRAIN, cursor.epoch + 1)
        steps = self.data_steps(), self.train.steps(following, self.world.size)
        return Left(
            self.schedule.steps_left(cursor, *steps),
            self.schedule.evaluations_left(cursor, *steps),
        )

    def data_steps(self) -> int | None:
        """Steps that the data have for the present epoch; None if known only at their end."""
        return self.train.steps(self.state.cursor, self.world.size)
