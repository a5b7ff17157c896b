"""Builds and runs the loop of a worker that evaluates or predicts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras

from hvd_elastic_keras.api.first_steps import explained_first_steps
from hvd_elastic_keras.api.prepare import together_of
from hvd_elastic_keras.api.train import open_to, read_along
from hvd_elastic_keras.common.predictions import PartFiles
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, variables_of
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.course import Course
from hvd_elastic_keras.loop.kept_on_disk import Durable
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.newcomer import warm_up
from hvd_elastic_keras.loop.observer import Observer, Observers
from hvd_elastic_keras.loop.observers.agreement import SameReading
from hvd_elastic_keras.loop.observers.records import InferenceRecords
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.progress_display import InferenceDisplay, ProgressDisplay
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.loop.shares import Shares
from hvd_elastic_keras.loop.start_notices import Announcer, StartNotices
from hvd_elastic_keras.loop.training_loop import TrainingLoop
from hvd_elastic_keras.observe.console import Screen
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.state.parts import UserState
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step.compiled_steps import compiled_step
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.predict_step import Predictor, PredictStep
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus
from hvd_elastic_keras.worker.rounds import OwnRounds
from hvd_elastic_keras.worker.session import SoloSession


class Results(Observer):
    """Writes the results, and shows a line about them once for all workers.

    Args:
      write: writes the results and returns a line for people. A rank 0 that takes over at the end
        writes the same again.
      tell: shows a line once per job.
    """

    root_only = True

    def __init__(self, write: Callable[[], str], tell: Callable[[str], Any]) -> None:
        self._write = write
        self._tell = tell

    def on_end(self) -> None:
        """Writes the results."""
        self._tell(self._write())


VALIDATION = "val_"
"""The prefix of an evaluation's logs at the end of an epoch."""


@dataclasses.dataclass(frozen=True)
class Worked:
    """Everything that an evaluation or a prediction works on.

    Attributes:
      model: the model with its weights; compiled if it is evaluated.
      cut_is_chosen: whether the user has said how large a micro-batch is.
      began: when this worker began, on the clock of `time.monotonic`.
    """

    model: keras.Model
    pipeline: Pipeline
    membership: Membership
    cut_is_chosen: bool
    seed: int
    began: float


def run_loop(
    worked: Worked,
    write: Callable[[dict[str, Any]], str],
    predictor: Predictor | None = None,
    parts: PartFiles | None = None,
    first_missing_step: Callable[[], int] = lambda: 0,
) -> None:
    """Takes all steps, together with all other workers.

    Args:
      write: called by rank 0 at the end, with the results of an evaluation; returns a line for
        people.
      predictor, parts: compute and keep predictions; without them, the model is evaluated.
      first_missing_step: returns the step at which an unfinished prediction continues.
    """
    membership = worked.membership
    check_gpus(membership)
    rounds = OwnRounds(membership)
    variables = variables_of(worked.model)
    world_of_process().follow(SoloSession())  # nothing is pending while it warms up
    if predictor is None or parts is None:
        runner, told, collectives = _evaluation(worked, variables, rounds)
        doing = "evaluating"
    else:
        runner = _prediction(worked, variables, rounds.communicator, predictor, parts)
        told, collectives, doing = [], "", "predicting"
    to_tell = [*open_to(rounds), *told]
    along = read_along(membership, {Phase.INFER: runner})
    warm_up_s = time.monotonic() - worked.began
    rounds.session.join(rounds.communicator, runner.input.num_micro_batches, warm_up_s)
    callbacks = CallbackRunner((), worked.model, {"epochs": 1, "steps": None})
    state = _state(worked, variables, callbacks, collectives)
    show = rounds.session.reporter.show
    observers = [
        *along,
        InferenceDisplay(show, doing, membership.screen),
        *_observers(rounds, runner, state, to_tell, write),
    ]
    loop_parts = _loop_parts(
        worked.model, rounds, runner, state, callbacks=callbacks, observers=observers
    )
    TrainingLoop(loop_parts, _Predictions(state, first_missing_step)).run()


def _evaluation(
    worked: Worked, variables: ModelVariables, rounds: OwnRounds
) -> tuple[PhaseRunner, list[Notice], str]:
    """Warms up an evaluation. Returns its runner, notices, and the digest of its collectives."""
    step = _evaluation_step(worked, variables)
    runner = PhaseRunner(worked.pipeline, step)
    with explained_first_steps(worked.model, worked.pipeline, None):
        warm_up(rounds, variables, [runner])
    warnings = (*step.told, *step.warnings_for_several)
    return runner, [Notice(f"warning: {text}") for text in warnings], step.collectives_digest


def _observers(
    rounds: OwnRounds,
    runner: PhaseRunner,
    state: RunState,
    to_tell: Sequence[Notice],
    write: Callable[[dict[str, Any]], str],
) -> list[Observer]:
    reporter = rounds.session.reporter

    def write_results() -> str:
        logs = state.epoch_logs.items()
        return write({name.removeprefix(VALIDATION): value for name, value in logs})

    return [
        InferenceRecords(reporter, rounds.session.training),
        SameReading({Phase.INFER: runner}, rounds.communicator),
        StartNotices(reporter, to_tell, lambda: ""),
        Results(write_results, reporter.tell),
    ]


def _loop_parts(
    model: keras.Model,
    rounds: OwnRounds,
    runner: PhaseRunner,
    state: RunState,
    *,
    callbacks: CallbackRunner,
    observers: list[Observer],
) -> LoopParts:
    reporter = rounds.session.reporter
    display = ProgressDisplay(reporter.show, Screen.LINES)  # only shows single lines
    shares = Shares(state, runner.input.num_micro_batches, Announcer(reporter, display))
    return LoopParts(
        model=model,
        rounds=rounds,
        state=state,
        train=runner,
        evaluate=runner,
        callbacks=callbacks,
        world=world_of_process(),
        course=Course(Schedule(epochs=1), state, runner, world_of_process()),
        shares=shares,
        observers=Observers(observers, [shares]),
        trains=False,
    )


def _evaluation_step(worked: Worked, variables: ModelVariables) -> PartitionedStep:
    """Returns the step that an evaluation within a training also takes."""
    options = env.run_options()
    return compiled_step(
        worked.model,
        variables,
        worked.pipeline,
        train=False,
        seed=worked.seed,
        deterministic=options.deterministic,
        options=StepOptions(together=together_of(options, worked.cut_is_chosen)),
    )


def _prediction(
    worked: Worked,
    variables: ModelVariables,
    communicator: Communicator,
    predictor: Predictor,
    parts: PartFiles,
) -> PhaseRunner:
    """Returns a runner of steps that write predictions. Traces the graph, writes nothing."""
    with variables.unchanged():
        predictor(structure.cut(worked.pipeline.first_batch(), 0, worked.pipeline.micro_batch_size))
    step = PredictStep(predictor, parts, world_of_process(), communicator.any_true)
    return PhaseRunner(worked.pipeline, step)


def _state(
    worked: Worked, variables: ModelVariables, callbacks: CallbackRunner, collectives: str
) -> RunState:
    worked.model.stop_training = False
    return RunState(
        worked.model,
        variables,
        callbacks,
        inputs=[worked.pipeline],
        cursor=Cursor(phase=Phase.INFER),
        user=UserState(),
        collectives=collectives,
    )


class _Predictions(Durable):
    """Keeps predictions on disk, each micro-batch in files of its own, and nothing else."""

    def __init__(self, state: RunState, first_missing_step: Callable[[], int]) -> None:
        super().__init__()
        self._state = state
        self._first_missing_step = first_missing_step

    def load_results(self) -> None:
        """Marks the phase as ended: a worker that comes too late has nothing left to do."""
        self._state.marks.ended = True

    def go_on_from_newest(self) -> bool:
        """Goes on from the first step with predictions missing on disk.

        Returns False if that is step 0.
        """
        step, cursor = self._first_missing_step(), self._state.cursor
        self._state.cursor = dataclasses.replace(
            cursor, step=step, global_step=step, progress=cursor.progress + step
        )
        return step > 0
