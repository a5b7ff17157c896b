"""Trains one model once. `Trainer` and `ElasticCallback` share this code."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from hvd_elastic_keras.api.build_loop import build_loop, by_phase
from hvd_elastic_keras.api.first_steps import explained_first_steps
from hvd_elastic_keras.api.fit_in_elastic_run import RoundInside, RoundOverError
from hvd_elastic_keras.api.fit_rounds import FitRounds, Prepared
from hvd_elastic_keras.api.training import Training, own_steps
from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.common.events import TensorBoardUsed
from hvd_elastic_keras.common.garbage import not_collected
from hvd_elastic_keras.common.protocol import READING, TRACING
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.keras_internals.global_seed import leave_as_after_fit
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.newcomer import ReadAlong, first_rows, warm_up
from hvd_elastic_keras.loop.observer import Observer, Round
from hvd_elastic_keras.loop.observers import best_model
from hvd_elastic_keras.loop.observers.changes_unseen import ChangesUnseen
from hvd_elastic_keras.loop.observers.growing_batch import PerWorkerRunner
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.observe.notices import Notice, notices
from hvd_elastic_keras.settings.options import AUTO, LOOP, SKIP, SPEED, RunOptions
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.state.run_state import LEAST_LATE_BYTES, RunState
from hvd_elastic_keras.step.compiled_steps import (
    compiled_step,
    trainable_in_steps,
    variables_kept,
)
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.traced_step import PLAIN, StepOptions
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus
from hvd_elastic_keras.worker.reporter import Reporter
from hvd_elastic_keras.worker.rounds import Rounds
from hvd_elastic_keras.worker.session import SoloSession

CHECKED_WORKERS = 3
NOT_SHARED = (
    "these variables of layers differ from worker to worker: {}. Only numeric variables of a fixed "
    "shape can be sent to another one. Keep in them only what does not change while it trains."
)


def train(training: Training, rounds: FitRounds) -> None:
    """Trains to the end, together with all other workers.

    In a user's script, a worker that has to leave before the end (SIGTERM, `ctl remove`) ends its
    process with exit code 0.

    Raises:
      MasterUnreachableError: the launcher is gone.
      CollectiveFailedError: the same step fails again and again although no worker is lost.
      ConfigurationError: the model or the data cannot be trained. If the script does not catch this
        error, the job ends with the error's text.
    """
    try:
        with own_steps():
            if isinstance(rounds, RoundInside):
                _train_inside(training, rounds)
            else:
                _train(training, rounds)
    except WorkerLeavingError as error:
        rounds.membership.end_process(error)
    finally:
        leave_as_after_fit()


def _train(training: Training, rounds: FitRounds) -> None:
    began = time.monotonic()
    membership, session = rounds.membership, rounds.session
    check_gpus(membership)
    communicator = rounds.communicator
    if membership.launched:  # code before the first step concerns this worker only
        world_of_process().enter_round(0, 1)
    joins = membership.others_train(session.training + 1)
    session.reporter.at(TRACING, 0, 0)
    prepared, told_of_steps = _prepare(
        training,
        rounds,
        joins=joins,
        has_others=membership.has_others,
        begins_alone=membership.begins_alone,
    )
    told = open_to(rounds)
    along = read_along(membership, by_phase(prepared.runners))
    session.join(
        communicator,
        training.train.num_micro_batches,
        warm_up_s=time.monotonic() - began,
        each=training.growth is not None,
    )
    to_tell = [*told, *_warnings(training, told_of_steps), *_curves_beside(training.callbacks)]
    watching = [*along, ChangesUnseen(trainable_in_steps(training.model))]
    build_loop(training, prepared, rounds, to_tell, watching).run()


def _train_inside(training: Training, inside: RoundInside) -> None:
    """Trains in a round of `elastic.run`, and continues a `fit` that an earlier round has cut off.

    Writes no files. The files of the job belong to its trainings, and the whole function of
    `elastic.run` counts as one training.
    """
    unaudited = training.options.replaced({"audit": False})
    training = dataclasses.replace(training, job_dir=None, options=unaudited)
    told_of_steps: list[str] = []
    prepared = inside.prepared_for(training.data, training.model)
    if prepared is None:
        # Code before the first step concerns this worker only.
        world_of_process().enter_round(0, 1)
        prepared, told_of_steps = _prepare(training, inside)
    before, prepared.callbacks = prepared.callbacks, training.callbacks
    prepared.state.hand_over(training.callbacks, training.user)
    inside.take_up(prepared.state)
    training.callbacks.succeed(before)
    told = open_to(inside)
    to_tell = [*told, *([] if inside.goes_on else _warnings(training, told_of_steps))]
    watching = [ChangesUnseen(trainable_in_steps(training.model))]
    loop = build_loop(training, prepared, inside, to_tell, watching)
    with inside.until_end_of_round(prepared):
        try:
            loop.run()
        except RoundOverError:
            training.callbacks.pause()
            raise


@not_collected()
def _prepare(
    training: Training,
    rounds: FitRounds,
    *,
    joins: bool = False,
    has_others: bool = True,
    begins_alone: bool = True,
) -> tuple[Prepared, list[str]]:
    """Traces the steps of the training and runs each once. Returns them and warnings for the user.

    Args:
      joins: whether other workers train already.
      has_others, begins_alone: see `Membership`.
    """
    model = training.model
    variables = variables_kept(model)
    before = variables.values()
    for variable in variables.metrics:  # `reset_metrics` is called as often as in plain Keras
        variable.assign(tf.zeros_like(variable.value))
    world_of_process().follow(SoloSession())  # nothing is pending while it warms up
    with explained_first_steps(model, training.train, training.evaluate):
        sources = _inputs(training)
        steps = [_step(training, variables, source) for source in sources]
        runners = list(map(_runner, sources, steps))
        told_of_steps = [text for step in steps for text in step.told]
        if has_others:
            told_of_steps += [text for step in steps for text in step.warnings_for_several]
        variables = variables.with_given(
            v for step in steps for v in step.assigned_beside(has_others=has_others)
        )
        before += [tf.identity(v) for v in variables.all[len(before) :]]
        if training.options.explain_step:
            _explain(steps[0])
        if training.options.check_step:
            _check(runners[0])
        if variables.lost:
            told_of_steps.append(NOT_SHARED.format(", ".join(variables.lost)))
        model.stop_training = False
        is_late = joins and _may_be_late(training, variables, steps[0])
        warm_up(rounds, variables, runners, has_others=has_others, begins_alone=begins_alone)
    if training.options.keep_best:
        best_model.check(
            training.options.keep_best,
            model,
            evaluates=training.evaluate is not None,
            has_directory=training.job_dir is not None,
        )
    variables.assign(before)
    state = RunState(
        model,
        variables,
        training.callbacks,
        inputs=[runner.input for runner in runners],
        cursor=Cursor(epoch=training.schedule.initial_epoch),
        user=training.user,
        collectives=" ".join(step.collectives_digest for step in steps) if has_others else "",
    )
    if is_late:
        state.may_be_late = lambda: not training.callbacks.calls_before_batch()
    prepared = Prepared(
        model,
        runners,
        state,
        training.callbacks,
        _UserRounds(training),
        data=training.data,
        function=model.train_function,
    )
    return prepared, told_of_steps


def explain_step(training: Training) -> None:
    """Shows how several workers would share the training step.

    Raises:
      ConfigurationError: several workers cannot share the step.
    """
    errors = explained_first_steps(training.model, training.train, training.evaluate)
    with own_steps(), errors:
        _explain(_step(training, variables_kept(training.model), training.train))


def _explain(step: PartitionedStep) -> None:
    """Shows how several workers share the step. The same line from several workers is shown once.

    Raises:
      ConfigurationError: several workers cannot share the step.
    """
    for line in step.analysis.lines():
        notices.tell(f"step: {line}")


def _check(runner: PhaseRunner) -> None:
    """Checks the training step on the first batch.

    Raises:
      ConfigurationError: several workers would compute other numbers than one worker.
    """
    assert isinstance(runner.step, PartitionedStep)
    count = runner.input.num_micro_batches
    num_operations = runner.step.check(first_rows(runner, count), CHECKED_WORKERS)
    notices.tell(
        f"step: checked: {CHECKED_WORKERS} workers compute the numbers of one worker in all of its "
        f"{num_operations:,} operations"
    )


def _may_be_late(training: Training, variables: ModelVariables, step: PartitionedStep) -> bool:
    """Returns whether the others can take steps before this newcomer has received its state.

    If the batch grows with the workers, they cannot: only workers that compute something count.
    """
    if training.growth is not None or variables.num_bytes < LEAST_LATE_BYTES:
        return False
    return step.may_be_late()


def open_to(rounds: Rounds) -> list[Notice]:
    """Makes the training notice membership changes, and the input's notices reach the user.

    Returns the notices that have not been shown yet.
    """
    world_of_process().follow(rounds.session)
    return notices.report_to(_shown_by(rounds.session.reporter, rounds.membership))


def read_along(membership: Membership, runners: Mapping[Phase, PhaseRunner]) -> list[Observer]:
    """Brings a newcomer's inputs close to the position of the others, if this requires reading.

    The returned observer reads on until the worker enters its first round.
    """
    if not any(runner.input.from_front for runner in runners.values()):
        return []
    training = membership.session.training + 1
    others_read = functools.partial(membership.others_read, training)
    along = ReadAlong(runners, others_read)
    membership.session.reporter.at(READING, 0, 0)
    along.start(gives_up=lambda: membership.leaving)
    return [along]


class _UserRounds(Observer):
    """Calls the user's functions when the world size changes for this worker."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._size = 0

    def on_round(self, entered: Round) -> None:
        """Calls reset callbacks before newcomers get the state, which they may change."""
        size = entered.place.size
        old, self._size = self._size, size
        if old:
            self._training.user.on_reset()
        if old and old != size and self._training.on_membership_change is not None:
            self._training.on_membership_change(old, size)


def _inputs(training: Training) -> list[Input]:
    return [i for i in (training.train, training.evaluate) if i is not None]


def _warnings(training: Training, told: Iterable[str]) -> list[Notice]:
    """Returns warnings for the user about the training, before it begins."""
    texts = list(dict.fromkeys(told))
    if training.options.audit and training.job_dir is None:
        texts.append("there is no job directory, so that no ledger of used examples is written")
    count, size = training.train.num_examples, training.train.global_batch_size
    if count is not None and count < size:
        texts.append(
            f"there are {count} training examples, fewer than the {size} of a global batch: every "
            "step takes all of them."
        )
    return [Notice(f"warning: {text}") for text in texts]


def _curves_beside(callbacks: CallbackRunner) -> list[Notice]:
    """Returns a notice that tells the launcher the user's TensorBoard directory."""
    directory = callbacks.tensorboard_dir
    if directory is None:
        return []
    return [Notice("", TensorBoardUsed(directory=directory, host=socket.gethostname()))]


def _shown_by(reporter: Reporter, membership: Membership) -> Callable[[Notice], None]:
    """Returns a function that shows the notices of the input while it is read."""
    environment = membership.environment
    who = f"[{environment.worker_id}] " if environment else ""

    def report(notice: Notice) -> None:
        if notice.once:
            reporter.tell(notice.text, notice.entry, prefix=who)
        else:
            reporter.show(f"{who}{notice.text}\n")

    return report


def _step(training: Training, variables: ModelVariables, source: Input) -> PartitionedStep:
    """Returns the step that computes the batches of an input."""
    trains = source is training.train
    return compiled_step(
        training.model,
        variables,
        source,
        train=trains,
        seed=training.origin.seed,
        deterministic=training.options.deterministic,
        options=dataclasses.replace(
            _options(training) if trains else PLAIN,
            together=together_of(training.options, training.cut_is_chosen),
        ),
    )


def _runner(source: Input, step: PartitionedStep) -> PhaseRunner:
    if isinstance(source, PerWorkerInput):
        return PerWorkerRunner(source, step)
    return PhaseRunner(source, step)


def together_of(options: RunOptions, cut_is_chosen: bool) -> int | None:
    """Returns how many micro-batches may be computed in one pass; None means any number."""
    if options.micro_batches == LOOP:
        return 1
    # On a GPU, the user may have chosen the size of micro-batches to save memory.
    on_gpu = cut_is_chosen and tf.config.list_physical_devices("GPU")
    # The speed of a pass depends on how many micro-batches it has. Shares that follow the speed
    # would not settle.
    if options.micro_batches == AUTO and (on_gpu or options.balance == SPEED):
        return 1
    return options.micro_batches_together or None


def _options(training: Training) -> StepOptions:
    return StepOptions(
        audited=training.options.audit,
        measured_workers=training.train.num_micro_batches
        if training.options.balance == SPEED
        else 0,
        scales_rate=training.growth is not None,
        skips_nonfinite=training.options.on_nonfinite == SKIP,
        timed=training.options.tensorboard or training.callbacks.tensorboard_dir is not None,
        compression=training.options.compression,
        batch_norm=training.options.batch_norm,
    )
